"""The Grid of worker processes, with the workers' ends of the connections held by the tests."""

from __future__ import annotations

import pickle
import signal
import threading
from multiprocessing import Pipe
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from florilegium.apps.engines.workers import Worker, WorkerGrid, _serve
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
    message = pickle.loads(end.recv_bytes())
    end.send_bytes(pickle.dumps(Message(RecordDict(), reply_to=message)))


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


def test_a_dead_worker_ends_the_run(grid: WorkerGrid, ends: list[Any]) -> None:
    ends[0].close()
    replies = deliver(grid, [_message(1)], 5.0, Expected(), deployed=False)
    with pytest.raises(RunError, match=r"a worker process of the simulation died.*worker process 1 was killed by SIGK"):
        collect(["0"], {1: ["0"]}, replies, Expected(), deployed=False)


def test_an_error_outside_the_clients_is_a_reply() -> None:
    class Broken:
        def answer(self, message: Message, own: str) -> Message:
            raise KeyError(own)

    here, there = Pipe()
    message = _message(4)
    message.metadata.__dict__["_message_id"] = "m"
    server = threading.Thread(target=_serve, args=(Broken(), 4, there))
    server.start()
    for _ in range(2):
        here.send_bytes(pickle.dumps(message))
        reply = pickle.loads(here.recv_bytes())
        assert reply.has_error()
        assert reply.error.reason == "KeyError: '3'"
    here.close()
    server.join(10)
    assert not server.is_alive()
