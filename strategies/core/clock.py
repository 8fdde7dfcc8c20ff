"""The virtual clock of a simulation: how long exchanges would take on the devices of a fleet.

A client needs the time of its download, its training and its upload. It fails if it drops out or goes offline before
it has replied. The server waits for the replies that it uses, and no longer than ``round-timeout``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.network import network_for
from florilegium.common.errors import RunError
from florilegium.models.parameters import get_arrays, num_bytes
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.exchange import LATE
from florilegium.strategies.core.fleet import DAY, Fleet

if TYPE_CHECKING:
    from florilegium.strategies.core.roster import Member
    from florilegium.strategies.core.settings import ServerSettings

_LOOK = 60.0
"""Seconds between two looks for clients that are online, if there are none."""
_PATIENCE = 7 * DAY
"""Longest wait for a client that is online."""


@dataclass(frozen=True)
class Job:
    """A client's part of an exchange, as the fleet foresees it.

    Attributes:
        client: its id.
        end: when its reply arrives, or it fails, in virtual seconds since the run's start.
        error: why there will be no reply; "" if there will be one.
    """

    client: str
    end: float
    error: str = ""


def trained(settings: ServerSettings, examples: int) -> int:
    """Return how many examples a client with so many goes through in a round's training, repetitions included."""
    if settings.local_steps:
        return settings.local_steps * min(settings.batch_size, examples)
    return settings.local_epochs * examples


class Clock:
    """The virtual time of a run.

    Args:
        settings: the run's configuration, with the fleet.

    Attributes:
        now: virtual seconds since the run's start.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._fleet = Fleet(settings.fleet, settings.seed)
        self._replies: dict[str, float] = {}  # mean bytes of a reply in each phase's last exchange
        self.now = 0.0

    def lacks_memory(self, client: str) -> str:
        """Return why a client's memory does not suffice to train the run's network, "" if it does."""
        if not self._settings.fleet.memory or (memory := self._fleet.device(client).memory) >= self._needed:
            return ""
        has, needs = memory / 1e6, self._needed / 1e6
        return f"it has {has:.3g} MB of memory (key fleet.memory), and training needs {needs:.3g} MB"

    @cached_property
    def _needed(self) -> float:
        """Bytes for the parameters, as received and as trained, their gradients, and the optimizer's state."""
        s = self._settings
        received = num_bytes(get_arrays(network_for(dataset_of(s), s.model, s.seed)))
        return float(received * (3 + (2 if s.optimizer == "adam" else bool(s.momentum))))

    # ------------------------------------------------------------------------------------- exchanges

    def jobs(self, members: Sequence[Member], phase: str, path: Sequence[int], down: float, up: float) -> list[Job]:
        """Return when the replies of clients will arrive that are asked now.

        Args:
            members: the clients.
            phase: what they do; ``train`` takes the local epochs or steps, anything else one pass over the data.
            path: names the random draws; the round's number comes first.
            down: bytes that each client receives.
            up: bytes that each client sends; the phase's last exchange, if there was one, says better.
        """
        up = self._replies.get(phase, up)
        return [self._job(member, phase, path, down, up) for member in members]

    def _job(self, member: Member, phase: str, path: Sequence[int], down: float, up: float) -> Job:
        client, s = member.id, self._settings
        examples = trained(s, member.train) if phase == "train" else member.train
        seconds = self._fleet.device(client).seconds(down, examples, up)
        until = self._fleet.online_until(client, self.now)
        if (share := self._fleet.drops_out(client, phase, path)) is not None:
            seconds *= share
        end = self.now + seconds
        if end > until:
            return Job(client, until, "its device went offline")
        return Job(client, end, "its device dropped out" if share is not None else "")

    def wait(self, jobs: Sequence[Job], wanted: int) -> dict[str, str]:
        """Let the time pass until the first ``wanted`` replies are there; return why the other clients are not used."""
        s = self._settings
        replies = sorted((job for job in jobs if not job.error), key=lambda job: job.end)
        used = [job for job in replies[:wanted] if job.end <= self.now + s.round_timeout]
        late = replies[len(used) :]
        silent = len(used) < min(wanted, len(replies))  # somebody is waited for until the deadline
        said = f"no reply within {s.round_timeout:g} s (key round-timeout)"
        if not silent:
            said = f"{LATE} {wanted} to answer (key oversample)"
        self.now = self.now + s.round_timeout if silent else max((job.end for job in used), default=self.now)
        return {job.client: job.error for job in jobs if job.error} | {job.client: said for job in late}

    def heard(self, phase: str, replies: int, up: float) -> None:
        """Learn from an exchange how large replies are: ``replies`` of ``up`` bytes in all."""
        self._replies[phase] = up / replies

    # ------------------------------------------------------------------------------------ availability

    def draw(self, clients: Sequence[str], count: int, rng: np.random.Generator, *, wait: bool = True) -> list[int]:
        """Draw clients uniformly without replacement from those that are online.

        Args:
            clients: ids.
            count: how many to draw; all that are online, if they are fewer.
            wait: whether to let the time pass if nobody is online, rather than to draw nobody.
            rng: the generator; where all clients are always online, it draws as in a run without a fleet.

        Returns:
            Indices into ``clients``.

        Raises:
            RunError: if nobody is online for a week.
        """
        if self._fleet.always_online:
            return [int(i) for i in rng.choice(len(clients), size=count, replace=False)]
        order = rng.permutation(len(clients))
        begun = self.now
        while not (found := self._online(clients, order, count)) and wait:
            self.now += _LOOK
            if self.now - begun > _PATIENCE:
                raise RunError("fleet.availability: no client has been online for a week of virtual time")
        return found

    def _online(self, clients: Sequence[str], order: NDArray[np.int64], count: int) -> list[int]:
        found: list[int] = []
        for index in order:
            if len(found) == count:
                break
            if self._fleet.online_until(clients[index], self.now) > self.now:
                found.append(int(index))
        return found

    # ------------------------------------------------------------------------------------- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the state for checkpoints; JSON values."""
        return {"now": self.now, "replies": self._replies}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`facts` returned."""
        self.now, self._replies = facts["now"], dict(facts["replies"])
