"""Buffered asynchronous rounds: a server step for every K updates, while other clients go on with older models.

FedBuff (Nguyen et al. 2022, Algorithm 1) and, with K = 1 and averages of models, FedAsync (Xie et al. 2019, Algorithm
1). A round is a server step. The cohort's size is the concurrency C: before each step, as many clients begin with the
present model as are missing to C. The step takes the K replies that arrive first. One that was sent the model s steps
ago has the staleness s and the weight p_k/(1 + s)^a; the divisor is Σ p_k, so that stale updates make the step shorter.

In a simulation the virtual clock says when each reply will arrive. A client trains when its reply is due, with the
model that it was sent; the server keeps the models that are in use. So all clients that are due with the same model
share one exchange, and with K = C a step is the exchange of a synchronous round.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, num_bytes
from florilegium.strategies.core.exchange import Outcome, joined

if TYPE_CHECKING:
    from florilegium.strategies.core.clock import Clock
    from florilegium.strategies.core.cohort import CohortStrategy
    from florilegium.strategies.core.round import Round

PREFIX = "buffer:"
"""Beginning of the names of its arrays in a checkpoint."""
Arguments = Callable[["Round", Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, order=True)
class Busy:
    """A client that has been sent a model and has not replied yet.

    Attributes:
        end: when its reply arrives, or it fails, in virtual seconds.
        place: its place in the order in which clients were sent models.
        client: its id.
        version: the round in which it was sent the model.
        error: why there will be no reply; "" if there will be one.
    """

    end: float
    place: int
    client: str
    version: int
    error: str


class Buffer:
    """The clients that are busy, and the models that they were sent.

    Args:
        strategy: the run's strategy.
    """

    def __init__(self, strategy: CohortStrategy) -> None:
        self._strategy, self._settings = strategy, strategy.settings.buffer
        self._busy: list[Busy] = []  # a heap
        self._sent: dict[int, Arrays] = {}  # by version
        self._places = 0

    def check(self) -> None:
        """Check that the settings are possible with the present clients.

        Raises:
            ConfigurationError: if they are not.
        """
        s, concurrency = self._strategy.settings, self._strategy.cohort_size(1)
        if self._strategy.roster.deployed:
            raise ConfigurationError("mode: 'buffered' is for simulations; on real devices set it to 'synchronous'")
        if not s.fleet.timed:
            raise ConfigurationError(
                "mode: 'buffered' needs clients that take time; set fleet.speed, fleet.download or fleet.upload"
            )
        if self._settings.size > concurrency:
            raise ConfigurationError(
                f"buffer.size: a server step cannot wait for {self._settings.size} updates while {concurrency} clients "
                "are busy; lower it, or raise cohort-size or participation"
            )

    def step(self, round: Round, sent: Arrays, arguments: Arguments) -> Outcome:
        """Return the merged updates for a server step; its arrays are Σ p_k/(1 + s_k)^a·Δ_k.

        Args:
            round: the round.
            sent: the arrays that clients are sent which begin now.
            arguments: returns the phase's arguments for the clients of a round.

        Raises:
            RunError: if fewer than ``min-success`` of K updates have arrived within ``round-timeout``.
        """
        self._sent[round.number] = sent
        outcomes = []
        for version, clients in self._arrived(round).items():
            outcome = round.ask(
                "train", clients, send=self._sent[version], reduce="delta", out_of=0, arrived=True,
                **arguments(round, clients),
            )  # fmt: skip
            outcome.arrays = self._weighted(outcome, round.number - version, self._sent[version], sent)
            outcomes.append(outcome)
        merged = joined(outcomes)
        for outcome in outcomes:
            for name, array in outcome.arrays.items():
                merged.arrays[name] = merged.arrays[name] + array if name in merged.arrays else array
        self._forget_models()
        return round.require(merged, self._settings.size)

    def _weighted(self, outcome: Outcome, staleness: int, old: Arrays, new: Arrays) -> Arrays:
        """Return the sum of updates of clients that were all sent the model ``old``, times its staleness's factor."""
        factor = (1 + staleness) ** -self._settings.staleness_exponent
        arrays = outcome.arrays
        if self._settings.average == "models" and staleness:  # x_new − x_t = Δ + (x_τ − x_t)
            arrays = {name: Δ + outcome.weight * (old[name] - new[name].astype(float)) for name, Δ in arrays.items()}
        return {name: factor * array for name, array in arrays.items()}

    def _arrived(self, round: Round) -> dict[int, list[str]]:
        """Let time pass until K replies have arrived, or the deadline; return these clients by version, oldest first.

        Replies that fail or are too stale do not count.
        """
        strategy, clock = self._strategy, self._clock
        deadline = clock.now + strategy.settings.round_timeout
        taken: list[Busy] = []
        unused: dict[str, str] = {}
        attempt = 0
        self._send(round, round.number)
        while len(taken) < self._settings.size:
            if not self._busy:
                attempt += 1
                self._send(round, round.number, attempt)
            if self._busy[0].end > deadline:
                clock.now = deadline
                break
            one = heapq.heappop(self._busy)
            clock.now = max(clock.now, one.end)
            if reason := one.error or self._too_stale(round.number - one.version):
                unused[one.client] = reason
            else:
                taken.append(one)
        round.skip("train", unused)
        taken.sort(key=lambda one: one.place)
        versions = sorted({one.version for one in taken})
        return {version: [one.client for one in taken if one.version == version] for version in versions}

    def _too_stale(self, staleness: int) -> str:
        most = self._settings.max_staleness
        if not most or staleness <= most:
            return ""
        return f"{staleness} server steps have overtaken its update (key buffer.max-staleness = {most})"

    def _send(self, round: Round, *path: int) -> None:
        """Have as many clients begin with the present model as are missing to C; ``path`` names the random draws."""
        strategy, clock = self._strategy, self._clock
        busy = {one.client for one in self._busy}
        free = [client for client in strategy.trainable() if client not in busy]
        missing = min(strategy.cohort_size(round.number) - len(busy), len(free))
        if missing <= 0:
            return
        drawn = strategy.draw(free, missing, *path, wait=not busy)
        members = [strategy.roster.clients[client] for client in drawn]
        size = float(num_bytes(self._sent[round.number]))
        for job in clock.jobs(members, "train", path, size, size):
            heapq.heappush(self._busy, Busy(job.end, self._places, job.client, round.number, job.error))
            self._places += 1

    def _forget_models(self) -> None:
        """Forget the models that no busy client was sent."""
        used = {one.version for one in self._busy}
        self._sent = {version: arrays for version, arrays in self._sent.items() if version in used}

    @property
    def _clock(self) -> Clock:
        assert self._strategy.clock is not None, "checked before the run"
        return self._strategy.clock

    # ------------------------------------------------------------------------------------- checkpoints

    def arrays(self) -> Arrays:
        """Return the models in use, for checkpoints."""
        return {f"{PREFIX}{v}:{name}": array for v, sent in self._sent.items() for name, array in sent.items()}

    def facts(self) -> dict[str, Any]:
        """Return the other state for checkpoints; JSON values."""
        names = next(iter(self._sent.values()), {})
        return {"busy": [astuple(one) for one in self._busy], "places": self._places, "names": [*names]}

    def take_back(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`arrays` and :meth:`facts` returned."""
        self._busy = [Busy(*one) for one in facts["busy"]]
        self._places = facts["places"]
        versions = {one.version for one in self._busy}
        self._sent = {v: {name: arrays[f"{PREFIX}{v}:{name}"] for name in facts["names"]} for v in versions}
