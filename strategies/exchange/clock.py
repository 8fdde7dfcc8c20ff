"""The virtual clock of a simulation: how long exchanges would take on the devices of a fleet.

A client needs the time of its download, its training and its upload. It fails if it drops out or goes offline before
it has replied, which the server notices ``fleet.detection`` seconds later. The server waits for the replies that it
uses, and no longer than ``round-timeout``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import RunError
from florilegium.strategies.exchange.exchange import late, silent
from florilegium.strategies.exchange.fleet import DAY, Fleet

if TYPE_CHECKING:
    from florilegium.strategies.exchange.roster import Member
    from florilegium.strategies.settings.server import ServerSettings

_LOOK = 60.0
"""Seconds between two looks for clients that are online, if there are none."""
_PATIENCE = 7 * DAY
"""Longest wait for a client that is online."""


class Job(NamedTuple):
    """A client's part of an exchange, as the fleet foresees it.

    Attributes:
        client: its id.
        end: when its reply arrives, or the server notices that it has failed, in virtual seconds since the run's start.
        error: why there will be no reply; "" if there will be one.
    """

    client: str
    end: float
    error: str = ""


@dataclass(frozen=True)
class Load:
    """What an exchange asks of each of its clients.

    Attributes:
        phase: what they do; ``train`` takes the local epochs or steps, anything else one pass over the data.
        down: bytes that a client receives.
        up: bytes that a client returns, as far as is known before the exchange; above 0, so that it can be corrected.
    """

    phase: str
    down: float
    up: float


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
        self._ratios: dict[str, float] = {}  # bytes returned, divided by those of the load, in a phase's last exchange
        self.now = 0.0

    def lacks_memory(self, client: str, trained: float, frozen: float = 0) -> str:
        """Return why a client's memory does not suffice for parameters of so many bytes, "" if it does.

        Training needs the parameters, as received and as trained, their gradients, and the optimizer's state; and
        once what is frozen.
        """
        s = self._settings
        if not s.fleet.memory:
            return ""
        has = float(self._fleet.devices([client]).memory[0])
        needs = frozen + trained * (3 + (2 if s.optimizer == "adam" else bool(s.momentum)))
        if has >= needs:
            return ""
        return f"it has {has / 1e6:.3g} MB of memory (key fleet.memory), and training needs {needs / 1e6:.3g} MB"

    # ------------------------------------------------------------------------------------- exchanges

    def jobs(self, members: Sequence[Member], path: Sequence[int], load: Load) -> list[Job]:
        """Return when the replies of clients will arrive that are asked now.

        Args:
            members: the clients.
            path: names the random draws; the round's number comes first.
            load: what they are asked for.
        """
        s, fleet, clients = self._settings, self._fleet, [member.id for member in members]
        devices = fleet.devices(clients)
        counts = [member.without_validation(s.validation_fraction) for member in members]
        examples = np.array([trained(s, count) for count in counts] if load.phase == "train" else counts, dtype=float)
        seconds = devices.seconds(load.down, examples, load.up * self._ratios.get(load.phase, 1.0))
        shares = fleet.drop_outs(clients, load.phase, path)
        drops, until = ~np.isnan(shares), fleet.online_until(devices, self.now)
        ends = self.now + np.where(drops, shares, 1.0) * seconds
        offline = ends > until
        noticed = s.fleet.detection if s.fleet.timed else 0.0
        ends = np.minimum(ends, until) + np.where(drops | offline, noticed, 0.0)
        errors = np.where(offline, "its device went offline", np.where(drops, "its device dropped out", ""))
        return [Job(*job) for job in zip(clients, ends.tolist(), errors.tolist(), strict=True)]

    def wait(self, *groups: tuple[Sequence[Job], int]) -> dict[str, str]:
        """Let the time pass until an exchange ends; return why clients are not used.

        Args:
            groups: clients that were all asked now, in groups, with the number of replies that each group needs.
        """
        ends, unused = [self.now], dict[str, str]()
        for jobs, wanted in groups:
            end, why = self._wait(jobs, wanted)
            ends.append(end)
            unused |= why
        self.now = max(ends)
        return unused

    def _wait(self, jobs: Sequence[Job], wanted: int) -> tuple[float, dict[str, str]]:
        """Return when the first ``wanted`` replies are there, or no more are to come, and why clients are not used."""
        deadline = self.now + self._settings.round_timeout
        in_time = sorted((job for job in jobs if not job.error and job.end <= deadline), key=lambda job: job.end)
        used = in_time[:wanted]
        if len(used) == wanted:
            end = max((job.end for job in used), default=self.now)
            said = late(wanted)
        else:
            end = min(deadline, max((job.end for job in jobs), default=self.now))
            said = silent(self._settings.round_timeout)
        clients = {job.client for job in used}
        return end, {
            job.client: job.error if job.error and job.end <= end else said for job in jobs if job.client not in clients
        }

    def heard(self, load: Load, replies: int, up: float) -> None:
        """Learn from an exchange how large replies are: ``replies`` of ``up`` bytes in all."""
        self._ratios[load.phase] = up / replies / load.up

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
        return self._look(clients, rng.permutation(len(clients)), count, wait=wait)

    def online(self, clients: Sequence[str]) -> list[str]:
        """Return the clients that are online, in their order; if none is, let the time pass until one is.

        Raises:
            RunError: if nobody is online for a week.
        """
        if self._fleet.always_online or not clients:
            return list(clients)
        return [clients[i] for i in self._look(clients, np.arange(len(clients)), len(clients), wait=True)]

    def _look(self, clients: Sequence[str], order: NDArray[np.int64], count: int, *, wait: bool) -> list[int]:
        """Return the first ``count`` indices of ``order`` whose clients are online, as soon as there is one."""
        begun = self.now
        while not (found := self._online(clients, order, count)) and wait:
            devices = self._fleet.devices(clients)
            soonest = float(self._fleet.next_begin(devices, self.now).min())
            self.now += _LOOK * max(1, math.ceil((soonest - self.now) / _LOOK))
            if self.now - begun > _PATIENCE:
                raise RunError("fleet.availability: no client has been online for a week of virtual time")
        return found

    def _online(self, clients: Sequence[str], order: NDArray[np.int64], count: int) -> list[int]:
        """Return the first ``count`` indices of ``order`` whose clients are online."""
        found: list[int] = []
        begin = 0
        while len(found) < count and begin < len(order):
            some = order[begin : begin + 2 * (count - len(found)) + 16]  # often half of them are online
            begin += len(some)
            devices = self._fleet.devices([clients[index] for index in some])
            online = some[self._fleet.online_until(devices, self.now) > self.now]
            found += online[: count - len(found)].tolist()
        return found

    # ------------------------------------------------------------------------------------- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the state for checkpoints; JSON values."""
        return {"now": self.now, "ratios": self._ratios}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`facts` returned."""
        self.now, self._ratios = facts["now"], dict(facts["ratios"])
