"""Flower's Grid over worker processes of this one, connected by sockets: no SuperLink, no Ray.

Each worker is a node of the simulation and can run any client. Workers are forked from this process, with PyTorch, the
data and the network in place; or they start anew, where a process cannot be forked: in a notebook, whose threads may
hold locks, and if this process has used a GPU.
"""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol
from uuid import uuid4

import torch
from flwr.app import Error, Message

from florilegium.apps.assembly.parts import Assembly
from florilegium.apps.engines.passing import received, send
from florilegium.apps.origins.packages import import_path
from florilegium.clients.core.state import Change
from florilegium.clients.core.wire import Announcement
from florilegium.clients.core.worker import return_memory
from florilegium.clients.node.host import Host, Source
from florilegium.common.child import leave_signals_to_the_parent
from florilegium.common.references import PATH_VARIABLE
from florilegium.common.settings import Value
from florilegium.common.spool import LARGE
from florilegium.models.parameters import num_bytes
from florilegium.strategies.exchange.flower_inside import ErrorCode, identify, name_message
from florilegium.strategies.exchange.local_grid import LocalGrid

log = logging.getLogger("flwr")

_WAIT = 1.0
"""Seconds to wait for a reply before the caller looks at its own deadline."""
_GRACE = 5.0
"""Seconds that a worker has to end before it is killed."""


class Process(Protocol):
    """A worker's process: forked, or started anew."""

    @property
    def pid(self) -> int | None:
        """Its id."""

    def kill(self) -> None:
        """End it."""


class Worker:
    """A worker process, seen from the server.

    Attributes:
        node: its number as a node of the simulation, from 1 on.
        connection: what it reads messages from and writes replies to.
        process: the process.
        code: returns the exit code once it has ended, None before; negative: the signal that killed it.
        frugal: whether it runs one client at a time, while no other worker runs any.
        asked: the message whose reply it owes; None if it is idle.
        sent: whether it has been sent that message.
    """

    def __init__(
        self,
        node: int,
        connection: Connection,
        process: Process,
        code: Callable[[], int | None],
        *,
        frugal: bool = False,
    ) -> None:
        self.node, self.connection, self.process, self.code, self.frugal = node, connection, process, code, frugal
        self.asked: Message | None = None
        self.sent = False
        self._kept: tuple[Message, list[Change]] | None = None

    def ask(self) -> None:
        """Send the message that it is asked; if the process has died, :meth:`reply` raises that error."""
        self.sent = True
        try:
            send(self.connection, self.asked)
        except OSError:
            log.warning("worker process %d does not read its messages", self.node)

    def reply(self) -> Message | None:
        """Return the reply that has arrived, once the states of its clients count; None before.

        Raises:
            EOFError: if the process has died before its reply.
        """
        try:
            if found := self.connection.recv_bytes():
                self._kept = received(self.connection, found)
        except (EOFError, OSError):
            if self._kept is None:
                raise EOFError from None
            for change in self._kept[1]:  # which the process had begun with
                change.publish()
        else:
            assert self._kept is not None, "a reply comes before the word that its states count"
            if found and self._kept[1]:
                return None
        (reply, _), self._kept = self._kept, None
        self.asked, self.sent = None, False
        return reply

    def death(self) -> tuple[int | None, str]:
        """Return the exit code of the process, which has died, and how it died in words."""
        code = self.code()
        if code is not None and code < 0:
            return code, f"worker process {self.node} was killed by {signal.Signals(-code).name}"
        return code, f"worker process {self.node} ended (exit code {code})"


class WorkerGrid(LocalGrid):
    """A Grid whose nodes are worker processes.

    Args:
        workers: the workers.
        code: the hash of the run's code (:attr:`Assembly.code`).
        again: starts a frugal worker in place of one that was killed; None: a worker's death ends the run.
    """

    def __init__(self, workers: list[Worker], code: str, again: Callable[[int], Worker] | None = None) -> None:
        super().__init__()
        self._workers, self._again = workers, again
        self._code = code
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the workers."""
        return range(1, len(self._workers) + 1)

    @property
    def processes(self) -> Sequence[int]:
        """Ids of this process and of its workers'."""
        pids = [worker.process.pid for worker in self._workers]
        return [*super().processes, *(pid for pid in pids if pid is not None)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message to its worker and yield its id; "" if the worker has not replied to the one before."""
        for message in messages:
            name_message(message, name := uuid4().hex)
            worker = self._workers[message.metadata.dst_node_id - 1]
            if message.metadata.message_type == "query.roster":
                self._replies[name] = Message(Announcement(False, self._code).pack(), reply_to=message)
            elif worker.asked is None:
                worker.asked = message
                if not worker.frugal:
                    worker.ask()
            else:
                name = ""
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages that are there, after a second at most."""
        wanted = set(message_ids)
        if not wanted & self._replies.keys():
            busy = {worker.connection: worker for worker in self._workers if worker.sent}
            if not busy and (alone := next((worker for worker in self._workers if worker.asked is not None), None)):
                alone.ask()
                busy = {alone.connection: alone}
            for connection in wait([*busy], _WAIT):
                if (reply := self._reply(busy[connection])) is not None:  # type: ignore[index]
                    self._replies[reply.metadata.reply_to_message_id] = reply
        found = [self._replies[name] for name in wanted & self._replies.keys()]
        self._replies.clear()  # others came too late
        return found

    def _reply(self, worker: Worker) -> Message | None:
        """Return a worker's reply, None before it counts; replace it if it was killed, or return that as an error."""
        asked = worker.asked
        assert asked is not None, "a worker replies to messages only"
        try:
            return worker.reply()
        except EOFError:
            code, how = worker.death()
            worker.asked, worker.sent = None, False
        if code != -signal.SIGKILL or worker.frugal or self._again is None:
            how += ", though it ran one client at a time while no other worker ran any" if worker.frugal else ""
            return Message(Error(ErrorCode.UNKNOWN, how), reply_to=asked)
        log.warning("%s, most likely for lack of memory; it is started again, and runs one client at a time", how)
        worker.connection.close()
        self._workers[worker.node - 1] = again = self._again(worker.node)
        again.asked = asked
        return None


# ------------------------------------------------------------------------------------------- processes


@contextmanager
def worker_grid(assembly: Assembly, count: int, *, fork: bool) -> Iterator[WorkerGrid]:
    """Context of a grid with ``count`` worker processes, which end with it.

    Args:
        assembly: the run's parts.
        count: number of workers.
        fork: whether they may be forked; this process must have no threads that compute.
    """
    workers: list[Worker] = []
    start = partial(_started, assembly)
    if fork and not torch.cuda.is_initialized() and hasattr(os, "fork"):
        source = assembly.simulated_clients()  # loaded once for all
        if num_bytes(assembly.whole) >= LARGE:
            return_memory()  # what has built a large network is not to be copied into all workers
        gc.freeze()  # what all share is not to be copied because a worker looks for garbage in it
        start = partial(_forked, assembly, source, workers)
    try:
        for node in range(1, count + 1):
            workers.append(start(node))
        yield WorkerGrid(workers, assembly.code, partial(_started, assembly, frugal=True))
    finally:
        _end(workers)
        gc.unfreeze()  # what was frozen before the fork


def _forked(assembly: Assembly, source: Source, others: Sequence[Worker], node: int) -> Worker:
    here, there = multiprocessing.Pipe()
    # A socket is closed for the other side only if no process holds an end of it any more.
    inherited = [here, *(worker.connection for worker in others)]

    def work() -> None:
        for connection in inherited:
            connection.close()
        leave_signals_to_the_parent()
        _serve(assembly.host(source), node, there)

    process = multiprocessing.get_context("fork").Process(
        target=work, name=f"florilegium worker {node}", daemon=True
    )  # fmt: skip
    process.start()
    there.close()

    def code() -> int | None:
        process.join(_GRACE)
        return process.exitcode

    return Worker(node, here, process, code)


def _started(assembly: Assembly, node: int, *, frugal: bool = False) -> Worker:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PATH_VARIABLE: import_path(assembly.config)}
    here, there = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(node), str(there.fileno())],
        pass_fds=[there.fileno()], env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    there.close()
    connection = Connection(here.detach())
    connection.send_bytes(json.dumps({**assembly.config, **({"vectorise": "1"} if frugal else {})}).encode())
    return Worker(node, connection, process, lambda: process.wait(_GRACE), frugal=frugal)


def _end(workers: list[Worker]) -> None:
    """End all workers: those that wait for a message when their connection closes, the others by a signal."""
    for worker in workers:
        worker.connection.close()
        if worker.asked is not None:
            worker.process.kill()
    for worker in workers:
        try:
            ended = worker.code() is not None
        except subprocess.TimeoutExpired:
            ended = False
        if not ended:
            worker.process.kill()
            worker.code()


def _serve(host: Host, node: int, connection: Any) -> None:
    """Answer messages until the server closes the connection or dies."""
    host.hold_back()
    while True:
        try:
            message: Message = received(connection, connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            reply = host.answer(message, own=str(node - 1))
        except Exception as error:
            log.exception("worker process %d", node)
            said = f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, said), reply_to=message)
        send(connection, (reply, changes := host.held_back()))
        for change in changes:
            change.publish()
        if changes:
            connection.send_bytes(b"")  # they count


def _main(node: int, descriptor: int) -> None:
    """Work in a process that was started anew: receive the configuration, then messages."""
    from florilegium.apps.assembly.parts import assemble

    leave_signals_to_the_parent()
    connection = Connection(descriptor)
    identify()
    config: Mapping[str, Value] = json.loads(connection.recv_bytes())
    assembly = assemble(config, one_thread=True)
    _serve(assembly.host(assembly.simulated_clients()), node, connection)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
