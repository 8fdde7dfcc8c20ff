"""The Grid of worker processes, with the workers' ends of the connections held by the tests."""

from __future__ import annotations

import signal
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from florilegium.apps.engines.passing import received, send
from florilegium.apps.engines.workers import Worker, WorkerGrid, _serve
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import Announcement
from florilegium.common.errors import RunError
from florilegium.strategies.exchange.exchange import collect, deliver
from florilegium.strategies.exchange.expected import Expected


class Untouched:
    """A process that nobody should kill."""

    def kill(self) -> None:
        raise AssertionError


@pytest.fixture
def ends() -> list[Any]:
    return []


@pytest.fixture
def grid(ends: list[Any]) -> WorkerGrid:
    workers = []
    for node in (1, 2):
        here, there = Pipe()
        ends.append(there)
        workers.append(Worker(node, here, Untouched(), lambda: -signal.SIGKILL))
    return WorkerGrid(workers, "abc")


def _message(node: int, kind: str = "train") -> Message:
    return Message(RecordDict({"config": ConfigRecord({"clients": [str(node)]})}), node, kind)


def _reply(end: Any) -> None:
    message = received(end, end.recv_bytes())
    send(end, (Message(RecordDict(), reply_to=message), []))


def test_each_worker_gets_its_messages_and_replies_are_told_apart(grid: WorkerGrid, ends: list[Any]) -> None:
    first, second = grid.push_messages([_message(1), _message(2)])
    _reply(ends[1])
    (reply,) = grid.pull_messages([first, second])
    assert reply.metadata.reply_to_message_id == second
    _reply(ends[0])
    (reply,) = grid.pull_messages([first])
    assert reply.metadata.reply_to_message_id == first


def test_the_roster_query_needs_no_worker(grid: WorkerGrid) -> None:
    (reply,) = grid.send_and_receive([_message(1, "query.roster")])
    assert Announcement.unpack(reply.content) == Announcement(False, "abc")


def test_a_worker_that_owes_a_reply_counts_as_offline_until_it_comes(grid: WorkerGrid, ends: list[Any]) -> None:
    assert all(grid.push_messages([_message(1)]))
    assert list(grid.push_messages([_message(1)])) == [""]
    _reply(ends[0])
    assert list(grid.pull_messages(["of another exchange"])) == []
    assert all(grid.push_messages([_message(1)]))
    assert list(grid.send_and_receive([_message(2)], timeout=0.0)) == []


def test_a_worker_that_is_killed_is_started_again_once(ends: list[Any]) -> None:
    """Its clients run when no other worker's do; then the run ends, with the reason."""
    workers, again = [], []
    for node in (1, 2, 1):
        here, there = Pipe()
        ends.append(there)
        worker = Worker(node, here, Untouched(), lambda: -signal.SIGKILL, frugal=len(ends) == 3)
        (again if worker.frugal else workers).append(worker)
    grid = WorkerGrid(workers, "abc", lambda node: again.pop())
    first, second = grid.push_messages([_message(1), _message(2)])
    ends[0].close()
    assert list(grid.pull_messages([first, second])) == []
    assert list(grid.pull_messages([first, second])) == []  # as long as the other worker is at work
    assert not ends[2].poll()
    _reply(ends[1])
    assert [reply.metadata.reply_to_message_id for reply in grid.pull_messages([first, second])] == [second]
    threading.Timer(0.1, _reply, [ends[2]]).start()
    assert [reply.metadata.reply_to_message_id for reply in grid.pull_messages([first])] == [first]

    threading.Timer(0.1, ends[2].close).start()
    replies = deliver(grid, [_message(1)], 5.0, Expected(), deployed=False)
    with pytest.raises(
        RunError, match=r"most likely for lack of memory: worker process 1 was killed by SIGKILL, though it ran one"
    ):
        collect(["0"], {1: ["0"]}, replies, Expected(), deployed=False)


def test_a_worker_that_ends_otherwise_ends_the_run(ends: list[Any]) -> None:
    here, there = Pipe()
    there.close()
    grid = WorkerGrid([Worker(1, here, Untouched(), lambda: 3)], "abc", lambda node: pytest.fail("started again"))
    (reply,) = deliver(grid, [_message(1)], 5.0, Expected(), deployed=False)
    assert reply.error.reason == "worker process 1 ended (exit code 3)"


@pytest.mark.parametrize("dies", [False, True])
def test_a_reply_comes_once_the_states_of_its_clients_count(
    grid: WorkerGrid, ends: list[Any], tmp_path: Path, dies: bool
) -> None:
    """If the worker dies in between, the server publishes the states, which are the worker's to publish otherwise."""
    state = ClientState(tmp_path, 1, [], 0, "0")
    state.save({"number": np.array(1)})
    change = state.draft()
    assert change is not None
    (name,) = grid.push_messages([_message(1)])
    reply = Message(RecordDict(), reply_to=received(ends[0], ends[0].recv_bytes()))
    send(ends[0], (reply, [change]))
    assert list(grid.pull_messages([name])) == []
    assert ClientState(tmp_path, 1, [], 0, "0").load() is None
    if dies:
        ends[0].close()
    else:
        change.publish()
        ends[0].send_bytes(b"")
    assert len(list(grid.pull_messages([name]))) == 1
    assert ClientState(tmp_path, 1, [], 0, "0").load() is not None


def test_an_error_outside_the_clients_is_a_reply() -> None:
    class Broken:
        def answer(self, message: Message, own: str) -> Message:
            raise KeyError(own)

        def hold_back(self) -> None:
            """Nothing is stored."""

        def held_back(self) -> list[Any]:
            return []

    here, there = Pipe()
    message = _message(4)
    message.metadata.__dict__["_message_id"] = "m"
    server = threading.Thread(target=_serve, args=(Broken(), 4, there))
    server.start()
    for _ in range(2):
        send(here, message)
        reply, _ = received(here, here.recv_bytes())
        assert reply.has_error()
        assert reply.error.reason == "KeyError: '3'"
    here.close()
    server.join(10)
    assert not server.is_alive()
