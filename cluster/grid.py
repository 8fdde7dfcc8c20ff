"""Flower's Grid over workers on a Ray cluster, which may lose machines and gain others while a run goes on.

A node of the simulation is an address of messages here, not a machine: what is summed together follows from the number
of nodes alone, and any worker can carry out any message. A message whose worker is lost goes to another one, which
starts from the same model and the same states of clients, since a worker's states count once the server has its reply.
So the results are the same, bit for bit, whatever happens to the machines.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from florilegium.clients.core.state import Change
from florilegium.clients.core.wire import Announcement
from florilegium.cluster.stock import Stock
from florilegium.cluster.worker import Place
from florilegium.common.errors import RunError
from florilegium.common.spool import Spool
from florilegium.strategies.exchange.flower_inside import ErrorCode, name_message
from florilegium.strategies.exchange.local_grid import LocalGrid

log = logging.getLogger("flwr")

_WAIT = 1.0
"""Seconds to wait for a reply before the caller looks at its own deadline."""
_ALONE = 30.0
"""Seconds without any worker between two warnings of that."""
_LARGE = 100_000
"""Bytes from which on a record of a message travels by itself, once for all messages that have it; Ray sends less than
that within a call."""
TRIES = 3
"""Workers that a message may lose on machines that live on, and workers in a row that may end before they are ready."""


@dataclass
class _Worker:
    """A worker, seen from the server."""

    handle: Any
    place: Place | None = None


@dataclass
class _Job:
    """A message on its way.

    Attributes:
        message: the message, as it was pushed.
        records: references of those of its records that travel by themselves.
        losses: the workers that it has lost.
        reply, states: its reply, and the states that are to count first.
    """

    message: Message
    records: Mapping[str, Any]
    losses: int = 0
    reply: Message | None = None
    states: Sequence[Change] = ()


class ClusterGrid(LocalGrid):
    """A Grid whose messages are carried out by workers on a cluster.

    Args:
        nodes: number of nodes; there are at most as many workers, fewer where the cluster has fewer CPUs.
        code, data: hashes that every worker must find too (:class:`florilegium.cluster.worker.Part`).
        hire: starts a worker that is on none of the Ray nodes with these ids, and has it prepare itself; returns its
            handle, and the reference of the :class:`Place` that it will tell.
        stock: the rows of clients, which go with messages; None: workers have them.
    """

    def __init__(
        self,
        nodes: int,
        code: str,
        data: str,
        hire: Callable[[list[str]], tuple[Any, Any]],
        stock: Stock | None = None,
    ) -> None:
        super().__init__()
        self._nodes, self._code, self._data, self._hire, self._stock = nodes, code, data, hire, stock
        self._joining: dict[Any, _Worker] = {}
        self._idle: list[_Worker] = []
        self._busy: dict[Any, tuple[_Worker, _Job]] = {}
        self._waiting: deque[_Job] = deque()
        self._replies: dict[str, Message] = {}
        self._refused: dict[str, str] = {}
        self._stillborn = 0
        self._carried = Counter[str]()  # messages, by the name of the machine
        self._alone = time.monotonic()
        for _ in range(nodes):
            self._add()

    def close(self) -> None:
        """End the workers; the cluster is then as it was before."""
        for worker in (*self._joining.values(), *self._idle, *(worker for worker, _ in self._busy.values())):
            self._dismiss(worker)
        if self._carried:
            log.info(
                "messages by node: %s", ", ".join(f"{name} {count}" for name, count in sorted(self._carried.items()))
            )
        if self._stock is not None:
            log.info("rows by node: %s", self._stock.said())

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the nodes, from 1 on."""
        return range(1, self._nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message to a worker as soon as one is idle; yield its id, "" if its node owes an earlier reply."""
        for message in messages:
            name_message(message, name := uuid4().hex)
            jobs = [*self._waiting, *(job for _, job in self._busy.values())]
            if message.metadata.message_type == "query.roster":
                self._replies[name] = Message(Announcement(False, self._code).pack(), reply_to=message)
            elif message.metadata.dst_node_id in {job.message.metadata.dst_node_id for job in jobs}:
                name = ""
            else:
                self._waiting.append(_Job(message, _apart(message, jobs)))
                self._assign()
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there, after a second at most.

        Raises:
            RunError: if no worker can be used, or a client's state cannot be written.
        """
        wanted = set(message_ids)
        if not wanted & self._replies.keys():
            self._look()
        found = [self._replies[name] for name in wanted & self._replies.keys()]
        self._replies.clear()  # others came too late
        return found

    # --------------------------------------------------------------------------------------- details

    def _add(self) -> None:
        handle, ready = self._hire([*self._refused])
        self._joining[ready] = _Worker(handle)

    def _dismiss(self, worker: _Worker) -> None:
        with suppress(RayError, ValueError):  # it has died before
            ray.kill(worker.handle)

    def _assign(self) -> None:
        while self._idle and self._waiting:
            job = self._waiting.popleft()
            worker = self._idle.pop(self._nearest(job))
            task = self._sent(worker, job) if job.reply is None else worker.handle.settle.remote(job.states)
            self._busy[task] = worker, job

    def _nearest(self, job: _Job) -> int:
        """Return the place among idle workers of one whose machine has most of the message's clients' rows."""
        if self._stock is None:
            return 0
        clients, places = _clients(job.message), [worker.place for worker in self._idle]
        held = [0 if place is None else self._stock.held(clients, place) for place in places]
        return held.index(max(held))

    def _sent(self, worker: _Worker, job: _Job) -> Any:
        """Give a message to a worker; return the reference of what it will return."""
        message = copy(job.message)
        message.content = RecordDict({name: one for name, one in message.content.items() if name not in job.records})
        assert worker.place is not None, "only workers that are ready get messages"
        clients = [] if self._stock is None else _clients(message)
        rows = [] if self._stock is None else self._stock.send(clients, worker.place)
        return worker.handle.answer.remote(
            message, str(message.metadata.dst_node_id - 1), clients, *rows, **job.records
        )

    def _look(self) -> None:
        """Wait for a worker that has finished something, and go on with it."""
        ready, _ = ray.wait([*self._busy, *self._joining], num_returns=1, timeout=_WAIT)
        for reference in ready:
            if reference in self._joining:
                self._joined(self._joining.pop(reference), reference)
            else:
                self._finished(*self._busy.pop(reference), reference)
        self._assign()
        if self._busy or not self._waiting:
            self._alone = time.monotonic()
        elif time.monotonic() > self._alone + _ALONE:
            self._alone = time.monotonic()
            log.warning("no machine of the cluster has a free CPU; the run waits for one")

    def _joined(self, worker: _Worker, reference: Any) -> None:
        try:
            worker.place = place = ray.get(reference)
        except RayError as error:
            self._stillborn += 1
            if self._stillborn >= TRIES:
                raise RunError(
                    f"{TRIES} workers of the cluster ended before they were ready: {_said(error)}"
                ) from error
            log.warning("a worker ended before it was ready: %s", _said(error))
            self._dismiss(worker)
            self._add()
            return
        self._stillborn = 0
        if why := self._why_not(place):
            if place.node not in self._refused:
                log.warning("node %s is not used: %s", place.name, why)
            self._refused[place.node] = f"node {place.name}: {why}"
            if not _alive() - self._refused.keys():
                raise RunError(f"no node of the cluster can be used; {'; '.join(self._refused.values())}")
            self._dismiss(worker)
            self._add()
            return
        log.info("a worker on node %s is ready", place.name)
        self._idle.append(worker)

    def _why_not(self, place: Place) -> str:
        """Return why a worker cannot be used, "" if it can."""
        if place.error:
            return place.error
        if place.code != self._code:
            return f"it runs other code (hash {place.code}) than the server ({self._code}); install the same version"
        if place.data != self._data:
            return (
                f"it reads other data (hash {place.data}) than the server ({self._data}); give it the same files under "
                "data-dir, and delete its cache-dir"
            )
        return ""

    def _finished(self, worker: _Worker, job: _Job, reference: Any) -> None:
        """Keep a reply once the states that go with it count; give the message to another worker if this one is lost.

        Raises:
            RunError: if a client's state cannot be written.
        """
        try:
            found = ray.get(reference)
        except RayTaskError as error:
            raise RunError(f"a worker of the cluster failed: {error.cause}") from error
        except RayError as error:
            self._lost(worker, job, error)
            return
        self._idle.append(worker)
        if job.reply is None:
            assert worker.place is not None, "only workers that are ready get messages"
            self._carried[worker.place.name] += 1
            job.reply, job.states = found
            if job.states:
                self._waiting.appendleft(job)
                return
        assert job.reply is not None
        self._replies[job.message.metadata.message_id] = job.reply

    def _lost(self, worker: _Worker, job: _Job, error: RayError) -> None:
        assert worker.place is not None, "only workers that are ready get messages"
        place, clients = worker.place, _listed(_clients(job.message))
        # Of a machine that is out of reach, Ray does not know whether its workers live.
        died = not isinstance(error, ActorUnavailableError) and place.node in _alive()
        job.losses += died
        what = f"a worker on node {place.name} died" if died else f"node {place.name} is out of reach"
        self._dismiss(worker)
        self._add()
        if job.losses >= TRIES:
            said = f"{what}, the third with the same clients ({clients}): {_said(error)}"
            self._replies[job.message.metadata.message_id] = Message(
                Error(ErrorCode.UNKNOWN, said), reply_to=job.message
            )
            return
        again = "run again" if job.reply is None else "have their new states published"
        log.warning("%s; its clients %s elsewhere (%s): %s", what, again, clients, _said(error))
        self._waiting.appendleft(job)


def _alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def _apart(message: Message, others: Sequence[_Job]) -> dict[str, Any]:
    """Return references of the large records of a message, of the same object where another message has the same."""
    found: dict[str, Any] = {}
    for name, record in message.content.items():
        if _size(record) >= _LARGE:
            known = [job.records[name] for job in others if job.message.content.get(name) is record]
            found[name] = known[0] if known else ray.put(record)
    return found


def _size(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    """Return the bytes of a record's arrays; Flower's ``count_bytes`` fails for empty lists."""
    found = [value.data if isinstance(value, Array) else value for value in record.values()]
    return sum(len(data) for data in found if isinstance(data, bytes | Spool))


def _clients(message: Message) -> Sequence[str]:
    """Return the clients that a message names."""
    config: Any = message.content.get("config", {})
    return list(config.get("clients", ()))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _said(error: Exception) -> str:
    """Return an error of Ray's in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
