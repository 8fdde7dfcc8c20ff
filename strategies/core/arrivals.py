"""Whose replies arrive next in buffered rounds: as the virtual clock says, or as real devices send them.

In a simulation a client trains when its reply is due, with the model that it was sent. So all clients that are due with
the same model share one exchange, and no update waits in memory. Real devices train at once and reply when they are
done.
"""

from __future__ import annotations

import heapq
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from flwr.app import Message

from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Federation
from florilegium.strategies.core.round import Arguments, Round
from florilegium.strategies.exchange.clock import Clock
from florilegium.strategies.exchange.exchange import POLLS_DEPLOYED, Outcome, silent
from florilegium.strategies.exchange.requests import Posted

PHASE = "train"


@dataclass(frozen=True)
class Step:
    """What a server step waits for.

    Attributes:
        size: number of updates.
        enough: number of updates with which the step is taken when ``round-timeout`` is over; at least 1.
        too_stale: returns why an update of a client that was sent the model in this round is dropped, "" if it counts.
        begin: has others begin in the places of clients that have failed. It gets those that have replied or failed in
            this step, who do not begin again, and the number of updates that have arrived, whose places stay free.
        arguments: of the phase.
    """

    size: int
    enough: int
    too_stale: Callable[[int], str]
    begin: Callable[[Collection[str], int], None]
    arguments: Arguments


class Arrivals(ABC):
    """The clients that are busy, and the models that they were sent.

    Args:
        federation: the run's federation.

    Attributes:
        models: the models that are in use, by the round in which they were sent.
    """

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.models: dict[int, Arrays] = {}

    @property
    @abstractmethod
    def busy(self) -> set[str]:
        """The clients that have not replied yet."""

    @property
    def pending(self) -> set[str]:
        """The clients that begin nothing new: those that have not replied yet, or whose replies wait for their use."""
        return self.busy

    @property
    @abstractmethod
    def versions(self) -> set[int]:
        """The rounds whose models replies to come refer to."""

    @abstractmethod
    def begin(self, round: Round, clients: Sequence[str], path: Sequence[int], arguments: Arguments) -> None:
        """Have clients begin with the round's model; ``path`` names the random draws."""

    @abstractmethod
    def take(self, round: Round, step: Step) -> list[tuple[int, Outcome]]:
        """Return the updates of the next replies that count.

        No client counts twice. There are fewer updates than asked for if ``round-timeout`` is over and they are enough,
        or if all clients have replied or failed.

        Each outcome comes with the round in which its clients were sent their model.
        """

    def forget(self) -> None:
        """Forget the models that no reply to come refers to."""
        self.models = {version: self.models[version] for version in self.versions}

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the state for checkpoints besides the models; JSON values."""

    @abstractmethod
    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`facts` returned."""


# ---------------------------------------------------------------------------------------------- simulation


@dataclass(frozen=True, order=True)
class Busy:
    """A client of a simulation that has been sent a model and has not replied yet.

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


class SimulatedArrivals(Arrivals):
    """Replies arrive in the order of virtual time."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._queue: list[Busy] = []  # a heap
        self._places = 0

    @property
    def busy(self) -> set[str]:
        """The clients that have not replied yet."""
        return {one.client for one in self._queue}

    @property
    def versions(self) -> set[int]:
        """The rounds whose models replies to come refer to."""
        return {one.version for one in self._queue}

    def begin(self, round: Round, clients: Sequence[str], path: Sequence[int], arguments: Arguments) -> None:
        """Have clients begin with the round's model: foresee when they will reply."""
        members = [self._federation.roster.clients[client] for client in clients]
        timeout = self._federation.settings.round_timeout
        given_up = self._clock.now + timeout
        for job in self._clock.jobs(members, path, round.load(PHASE, self.models[round.number])):
            end, error = (job.end, job.error) if job.end <= given_up else (given_up, silent(timeout))
            heapq.heappush(self._queue, Busy(end, self._places, job.client, round.number, error))
            self._places += 1

    def take(self, round: Round, step: Step) -> list[tuple[int, Outcome]]:
        """Let time pass until enough replies have arrived; have these clients train, by version, the oldest first."""
        deadline = self._clock.now + self._federation.settings.round_timeout
        outcomes: list[tuple[int, Outcome]] = []
        heard: set[str] = set()
        while (used := sum(len(outcome.clients) for _, outcome in outcomes)) < step.size:
            if heard:  # some that have replied have failed in training
                step.begin(heard, used)
            if not (taken := self._next(round, step, used, deadline, heard)):
                break
            for version in sorted({one.version for one in taken}):
                clients = [one.client for one in taken if one.version == version]
                outcome = round.ask(
                    PHASE, clients, send=self.models[version], reduce="delta", out_of=0, arrived=True,
                    **step.arguments(round, clients),
                )  # fmt: skip
                outcomes.append((version, outcome))
        return outcomes

    def _next(self, round: Round, step: Step, used: int, deadline: float, heard: set[str]) -> list[Busy]:
        """Let time pass until the updates that are missing arrive; return who sends them, in order.

        Args:
            round: the round.
            step: what the server step waits for.
            used: number of updates that there are already.
            deadline: time at which to stop if there are enough.
            heard: the clients that have replied or failed in this step; further ones are added.
        """
        clock, taken, unused = self._clock, list[Busy](), dict[str, str]()
        while self._queue and used + len(taken) < step.size:
            if self._queue[0].end > deadline and used + len(taken) >= step.enough:
                clock.now = max(clock.now, deadline)
                break
            one = heapq.heappop(self._queue)
            clock.now = max(clock.now, one.end)
            heard.add(one.client)
            if reason := one.error or step.too_stale(one.version):
                unused[one.client] = reason
                step.begin(heard, used + len(taken))
            else:
                taken.append(one)
        round.skip(PHASE, unused)
        return sorted(taken, key=lambda one: one.place)

    @property
    def _clock(self) -> Clock:
        assert self._federation.clock is not None, "checked before the run"
        return self._federation.clock

    def facts(self) -> dict[str, Any]:
        """Return the queue, for checkpoints."""
        return {"busy": [astuple(one) for one in self._queue], "places": self._places}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the queue."""
        self._queue, self._places = [Busy(*one) for one in facts["busy"]], facts["places"]


# ------------------------------------------------------------------------------------------------- devices


class DeviceArrivals(Arrivals):
    """Replies arrive as real devices send them. A device that is silent for ``round-timeout`` is no longer busy."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._posted: list[Posted] = []
        self._inbox: deque[tuple[Posted, Message]] = deque()  # what has arrived and is not used yet

    @property
    def busy(self) -> set[str]:
        """The clients that have not replied yet."""
        return {one.client for one in self._posted}

    @property
    def pending(self) -> set[str]:
        """The clients that have not replied yet, or whose replies have not been used yet."""
        return self.busy | {one.client for one, _ in self._inbox}

    @property
    def versions(self) -> set[int]:
        """The rounds whose models replies to come refer to."""
        return {one.version for one in (*self._posted, *(one for one, _ in self._inbox))}

    def begin(self, round: Round, clients: Sequence[str], path: Sequence[int], arguments: Arguments) -> None:
        """Send devices the round's model."""
        self._posted += round.post(PHASE, clients, send=self.models[round.number], **arguments(round, clients))

    def take(self, round: Round, step: Step) -> list[tuple[int, Outcome]]:
        """Wait until enough usable replies have arrived; return a device's update each."""
        begun, timeout = time.monotonic(), self._federation.settings.round_timeout
        found: list[tuple[int, Outcome]] = []
        heard: set[str] = set()
        while len(found) < step.size:
            failed = self._look(round, timeout)
            if self._inbox:
                one, reply = self._inbox.popleft()
                heard.add(one.client)
                if reason := step.too_stale(one.version):
                    round.skip(PHASE, {one.client: reason})
                elif (outcome := round.receive(one, reply)).clients:
                    found.append((one.version, outcome))
                    continue
                failed.add(one.client)
            if failed:
                heard |= failed
                step.begin(heard, len(found))
                continue
            if not self._posted:
                break
            elapsed = time.monotonic() - begun
            if elapsed > timeout and len(found) >= step.enough:
                break
            shortest, longest = POLLS_DEPLOYED
            time.sleep(min(max(shortest, elapsed / 10), longest))
        return found

    def _look(self, round: Round, timeout: float) -> set[str]:
        """Take the replies that have arrived to the inbox, and give up devices that have been silent for too long.

        Returns:
            The clients that are given up.
        """
        arrived = round.arrived(self._posted)
        self._inbox += arrived
        done = {id(one) for one, _ in arrived}
        waiting = [one for one in self._posted if id(one) not in done]
        now = time.monotonic()
        self._posted = [one for one in waiting if now - one.at <= timeout]
        lost = {one.client for one in waiting if now - one.at > timeout}
        round.skip(PHASE, dict.fromkeys(sorted(lost), silent(timeout)))
        return lost

    def facts(self) -> dict[str, Any]:
        """Return nothing: a resumed run reaches no reply to the run before, and has all devices begin anew."""
        return {}

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Begin with no busy device."""
