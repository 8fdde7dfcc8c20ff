"""A device that dies or stops while it sends holds up nobody else, and is given up once it counts as offline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flwr.app import Error, Message

from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.wire import Reply, Request, Work
from florilegium.common.errors import FileError
from florilegium.strategies.exchange import pulling
from florilegium.strategies.exchange.exchange import collect, deliver
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.flower_inside import ErrorCode, name_message
from florilegium.strategies.exchange.pulling import AWAY, Pulls


class Grid:
    """Devices that have replied; pulling the replies of some of them waits until they have sent all."""

    def __init__(self, nodes: Iterable[int], sending: Iterable[int] = ()) -> None:
        self.nodes, self.sent = [*nodes], {node: threading.Event() for node in sending}
        self.replies: dict[str, Message] = {}
        self.pulls: list[list[str]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
        for message in messages:
            name = f"question {message.metadata.dst_node_id}"
            name_message(message, name)
            client = str(message.metadata.dst_node_id)
            reply = Reply([client], {}, {number: [1.0] for number in ALWAYS}, {})
            self.replies[name] = Message(reply.pack(), reply_to=message)
            yield name

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        wanted = list(ids)
        self.pulls.append(wanted)
        found = []
        for name in wanted:
            if name in self.replies:
                if (waits := self.sent.get(int(name.split()[1]))) is not None:
                    waits.wait(30)
                found.append(self.replies.pop(name))
        return found

    def get_node_ids(self) -> list[int]:
        return self.nodes


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "DOUBTFUL", 0.2)
    monkeypatch.setattr(pulling, "PATIENCE", 0.1)


def _ask(grid: Any, nodes: Iterable[int], timeout: float = 20.0) -> tuple[list[Message], float]:
    messages = [Message(Request([str(node)], "test", "sum", Work(1)).pack(None), node, "train") for node in nodes]
    began = time.monotonic()
    return deliver(grid, messages, timeout, Expected(), deployed=True), time.monotonic() - began


@pytest.mark.parametrize("count", [3, 40, 128])
def test_the_others_are_heard_while_a_device_that_died_is_given_up(count: int) -> None:
    grid = Grid([node for node in range(count) if node != 1], sending=[1])
    replies, seconds = _ask(grid, range(count))
    assert seconds < 5
    assert [place for place, reply in enumerate(replies) if reply.has_error()] == [1]
    outcome = collect([*map(str, range(count))], {node: [str(node)] for node in range(count)}, replies, Expected(),
                      deployed=True)  # fmt: skip
    assert outcome.failures["1"].endswith(AWAY)
    grid.sent[1].set()


def test_more_devices_than_pulls_share_them() -> None:
    grid = Grid([node for node in range(300) if node != 1], sending=[1])
    replies, _ = _ask(grid, range(300), timeout=3.0)
    assert [place for place, reply in enumerate(replies) if reply.has_error()] == [0, 1, 2]  # of one pull
    grid.sent[1].set()


def test_a_device_that_is_still_there_is_waited_for() -> None:
    grid = Grid(range(3), sending=[1])
    threading.Timer(1.0, grid.sent[1].set).start()
    replies, seconds = _ask(grid, range(3))
    assert not [reply for reply in replies if reply.has_error()]
    assert 1 <= seconds < 5


def test_it_is_waited_for_no_longer_than_the_exchange_may_take() -> None:
    grid = Grid(range(3), sending=[1])
    replies, seconds = _ask(grid, range(3), timeout=1.0)
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert "no reply within 1 s" in replies[1].error.reason
    assert seconds < 4
    grid.sent[1].set()


def test_no_request_is_pulled_twice_at_a_time() -> None:
    grid: Any = Grid(range(2), sending=[0, 1])
    pulls, nodes = Pulls(), {"question 0": 0, "question 1": 1}
    [
        *grid.push_messages(
            [Message(Request(["0"], "test", "sum", Work(1)).pack(None), node, "train") for node in (0, 1)]
        )
    ]
    assert pulls.look(grid, nodes) == []
    assert pulls.look(grid, nodes) == []
    assert sorted(grid.pulls) == [["question 0"], ["question 1"]]
    for waits in grid.sent.values():
        waits.set()
    time.sleep(0.2)
    assert sorted(name for name, _ in pulls.look(grid, nodes)) == ["question 0", "question 1"]


def test_flowers_own_words_for_what_never_came_are_put_plainly() -> None:
    message = Message(Request(["a"], "test", "sum", Work(1)).pack(None), 1, "train")
    reason = "Reply message objects are unavailable. … Failed to pull object 1f2e: timeout or retry limit reached"
    reply = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=message)
    outcome = collect(["a"], {1: ["a"]}, [reply], Expected(), deployed=True)
    assert outcome.failures == {"a": AWAY}


def test_a_disk_without_room_ends_the_run_and_is_no_reply() -> None:
    class Full(Grid):
        def pull_messages(self, ids: Iterable[str]) -> list[Message]:
            raise FileError("cannot write a temporary file")

    with pytest.raises(FileError, match="temporary file"):
        _ask(Full([1, 2]), [1, 2])
