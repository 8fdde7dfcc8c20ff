"""The clients of a run as its method sees them: who they are, who is online, and what their updates weigh."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from florilegium.strategies.exchange.clock import Clock
from florilegium.strategies.exchange.roster import Member, Roster
from florilegium.strategies.settings.server import ServerSettings

GROUPS = ("seen", "unseen", "unlabeled")


class Population(Mapping[str, Member]):
    """A view of the roster's clients, and the weights that the settings give them.

    Args:
        settings: the run's configuration.
        roster: the clients and the nodes that host them.
        clock: the virtual clock of a simulation with a fleet, which decides who is online; None: all are.
    """

    def __init__(self, settings: ServerSettings, roster: Roster, clock: Clock | None) -> None:
        self._settings, self._roster, self._clock = settings, roster, clock
        self._weighed: tuple[Mapping[str, Member], float] = {}, 0.0

    def __getitem__(self, client: str) -> Member:
        """Return a client; KeyError if it takes no part now."""
        return self._roster.clients[client]

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of all clients that take part now."""
        return iter(self._roster.clients)

    def __len__(self) -> int:
        """Return the number of clients that take part now."""
        return len(self._roster.clients)

    @property
    def deployed(self) -> bool:
        """Whether the clients are real devices."""
        return self._roster.deployed

    def ids(self, *groups: str, tested: bool = False) -> list[str]:
        """Return the ids of the clients of some of ``GROUPS``; ``tested``: of those with examples to evaluate on."""
        return self._roster.ids(*groups, tested=tested)

    def enrolled(self) -> list[Member]:
        """Return the seen clients, with those whose devices are offline now."""
        clients = self._roster.clients
        return [clients[client] for client in self.ids("seen")] + self._roster.absent("seen")

    def online(self, clients: Sequence[str]) -> list[str]:
        """Return those of ``clients`` that are online in a fleet; if none is, wait until one is, for a week at most."""
        return list(clients) if self._clock is None else self._clock.online(clients)

    def described(self) -> str:
        """Return the number of clients and of each group, in words."""
        groups = ", ".join(f"{len(self.ids(group))} {group}" for group in GROUPS if self.ids(group))
        return f"{len(self)} clients ({groups})"

    # ---------------------------------------------------------------------------------------- weights

    def trained_on(self, client: Member) -> int:
        """Return the number of a client's training examples without those held out for validation."""
        return client.without_validation(self._settings.validation_fraction)

    @property
    def heaviest(self) -> float | None:
        """The largest weight of any device's update; None: no limit."""
        s = self._settings
        return self._roster.heaviest(s.max_weight_ratio) if s.weighting == "examples" else None

    def dues(self, clients: Iterable[str]) -> dict[str, float]:
        """Return the largest weight of each client's update in an average; in training, its weight."""
        if self._settings.weighting == "uniform":
            return dict.fromkeys(clients, 1.0)
        most = self.heaviest or math.inf  # the median of all clients
        return {client: min(float(self[client].train), most) for client in clients}

    @property
    def weight(self) -> float:
        """The sum of the weights of all seen clients, with those whose devices are offline now."""
        if self._weighed[0] is not self._roster.clients:  # every round asks, and there may be a million clients
            self._weighed = self._roster.clients, sum(self.weights(self.enrolled()))
        return self._weighed[1]

    def weights(self, clients: Iterable[Member]) -> list[float]:
        """Return the weights of clients' updates in an average, wᵢ: 1, or the number of examples they train on."""
        if self._settings.weighting == "uniform":
            return [1.0 for _ in clients]
        most = self.heaviest or math.inf
        return [min(float(self.trained_on(client)), most) for client in clients]
