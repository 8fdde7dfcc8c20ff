"""The grid over a cluster, with a Ray of the tests' own, in which workers finish, die and are refused as asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from ray.exceptions import ActorDiedError, ActorUnavailableError

from florilegium.clients.core import wire
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import flat
from florilegium.cluster import grid as module
from florilegium.cluster import stock as stock_module
from florilegium.cluster.grid import ClusterGrid
from florilegium.cluster.stock import Stock
from florilegium.cluster.worker import Part, Place, Worker
from florilegium.common.errors import RunError
from florilegium.strategies.exchange.exchange import collect, deliver
from florilegium.strategies.exchange.expected import Expected


class Rays:
    """What the grid uses of Ray. A task is a function whose call gives its result, or raises.

    Attributes:
        places: where the next workers are, in the order in which they are hired.
        deaths: for each message that is carried out, in order, what its worker dies of; None: it replies.
        nodes_alive: ids of the nodes that live.
        events: what has happened: node and what it did.
    """

    def __init__(self) -> None:
        self.places: list[Place | Exception] = []
        self.deaths: list[Exception | None] = []
        self.nodes_alive = {"a", "b"}
        self.events: list[tuple[str, str]] = []
        self.avoided: list[list[str]] = []
        self.states: list[Any] = []
        self.stored: list[Any] = []
        self.calls: list[tuple[Message, list[str], tuple[Any, ...], dict[str, Any]]] = []

    def put(self, value: Any) -> Any:
        self.stored.append(value)
        return _Task(value)

    def hire(self, avoided: list[str]) -> tuple[Any, Any]:
        self.avoided.append(list(avoided))
        place = self.places.pop(0) if self.places else Place("b", "b", "code", "data")
        name = place.node if isinstance(place, Place) else "?"

        def answer(message: Message, own: str, clients: list[str], *rows: Any, **records: Any) -> Any:
            self.calls.append((message, clients, rows, records))
            death = self.deaths.pop(0) if self.deaths else None
            self.events.append((name, f"{'dies' if death else 'replies'} {own}"))
            return _Task(death or (Message(RecordDict(), reply_to=message), self.states))

        def settle(states: Any) -> Any:
            death = self.deaths.pop(0) if self.deaths else None
            self.events.append((name, "dies settling" if death else "settles"))
            if not death:
                Worker.settle(None, states)  # type: ignore[arg-type]
            return _Task(death)

        return SimpleNamespace(answer=SimpleNamespace(remote=answer), settle=SimpleNamespace(remote=settle)), _Task(
            place
        )

    def wait(self, tasks: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        if isinstance(task.result, Exception):
            raise task.result
        return task.result

    def kill(self, handle: Any) -> None:
        """Nothing is there."""

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": node in self.nodes_alive} for node in ("a", "b")]


class _Task:
    def __init__(self, result: Any) -> None:
        self.result = result


@pytest.fixture
def rays(monkeypatch: pytest.MonkeyPatch) -> Rays:
    monkeypatch.setattr(module, "ray", rays := Rays())
    return rays


A, B = Place("a", "a", "code", "data"), Place("b", "b", "code", "data")


def _exchange(grid: ClusterGrid, nodes: int = 1) -> list[Message]:
    messages = [
        Message(RecordDict({"config": ConfigRecord({"clients": [f"c{node}"]})}), node, "train")
        for node in range(1, nodes + 1)
    ]
    return deliver(grid, messages, 60.0, Expected(), deployed=False)


@pytest.mark.parametrize("death", [ActorDiedError(), ActorUnavailableError("", None)])
def test_a_lost_worker_costs_its_message_alone(rays: Rays, death: Exception, caplog: pytest.LogCaptureFixture) -> None:
    rays.places, rays.deaths = [A, B], [death]
    replies = _exchange(ClusterGrid(2, "code", "data", rays.hire), 2)
    assert not any(reply.has_error() for reply in replies)
    assert [event for event in rays.events if "dies" in event[1]] == [("a", "dies 0")]
    assert sorted(event[1] for event in rays.events if "replies" in event[1]) == ["replies 0", "replies 1"]
    assert "node a" in caplog.text
    assert "its clients run again elsewhere (c1)" in caplog.text


def test_one_worker_does_the_work_of_many(rays: Rays) -> None:
    grid = ClusterGrid(5, "code", "data", rays.hire)
    grid._joining = dict([*grid._joining.items()][:1])  # the others have no CPU
    assert len(_exchange(grid, 5)) == 5
    assert sorted(event[1] for event in rays.events) == [f"replies {node}" for node in range(5)]


def test_a_message_that_kills_three_workers_ends_the_run(rays: Rays) -> None:
    rays.deaths = [ActorDiedError()] * 3
    replies = _exchange(ClusterGrid(1, "code", "data", rays.hire))
    with pytest.raises(
        RunError, match=r"most likely for lack of memory: a worker on node b died, the third with the same clients .c1"
    ):
        collect(["c1"], {1: ["c1"]}, replies, Expected(), deployed=False)


@pytest.mark.parametrize("death", [ActorDiedError(), ActorUnavailableError("", None)])
def test_machines_may_be_lost_as_often_as_they_come_back(rays: Rays, death: Exception) -> None:
    if isinstance(death, ActorDiedError):
        rays.nodes_alive = {"a"}
    rays.deaths = [death] * 10
    (reply,) = _exchange(ClusterGrid(1, "code", "data", rays.hire))
    assert not reply.has_error()


def test_states_count_before_the_reply_whoever_publishes_them(rays: Rays, tmp_path: Path) -> None:
    """A worker dies when it has replied; another one publishes, and the clients do not run again."""
    state = ClientState(tmp_path, 1, [], 0, "0")
    state.save({"number": np.array(1)})
    rays.states, rays.deaths = [state.draft()], [None, ActorDiedError()]
    rays.places = [A]
    (reply,) = _exchange(ClusterGrid(1, "code", "data", rays.hire))
    assert not reply.has_error()
    assert rays.events == [("a", "replies 0"), ("a", "dies settling"), ("b", "settles")]
    assert ClientState(tmp_path, 1, [], 0, "0").load() is not None


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (Place("a", "a", "other", "data"), "it runs other code (hash other) than the server (code)"),
        (Place("a", "a", "code", "other"), "it reads other data (hash other) than the server (data)"),
        (Place("a", "a", error="DataError: no file"), "DataError: no file"),
    ],
)  # fmt: skip
def test_a_node_that_does_not_fit_is_refused_by_name(
    rays: Rays, place: Place, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    rays.places = [place, B]
    _exchange(ClusterGrid(2, "code", "data", rays.hire), 2)
    assert {event[0] for event in rays.events} == {"b"}
    assert rays.avoided[2:] == [["a"]]
    assert f"node a is not used: {why}" in caplog.text
    rays.places, rays.nodes_alive = [place], {"a"}
    with pytest.raises(RunError, match="no node of the cluster can be used; node a: "):
        _exchange(ClusterGrid(1, "code", "data", rays.hire))


def test_workers_that_never_start_end_the_run(rays: Rays) -> None:
    rays.places = [ActorDiedError()] * 3
    with pytest.raises(RunError, match="3 workers of the cluster ended before they were ready"):
        _exchange(ClusterGrid(1, "code", "data", rays.hire))


def test_a_node_that_owes_a_reply_takes_no_message(rays: Rays) -> None:
    grid = ClusterGrid(1, "code", "data", rays.hire)
    message = Message(RecordDict({"config": ConfigRecord({"clients": ["0"]})}), 1, "train")
    (first,) = grid.push_messages([message])
    assert list(grid.push_messages([message])) == [""]
    assert first


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_model_that_messages_share_is_stored_once(
    rays: Rays, in_a_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a message that is carried out again; what is small, or of one message alone, goes with it."""
    monkeypatch.setattr(wire, "LARGE", 100_000 if in_a_file else wire.LARGE)
    shared, small = flat({"a": np.zeros(50_000, np.float32)}), flat({"a": np.ones(3)})
    assert isinstance(shared, ArrayRecord) == in_a_file
    messages = [
        Message(RecordDict({"config": ConfigRecord({"clients": [f"c{node}"], "lineage": []})}), node, "train")
        for node in (1, 2, 3)
    ]
    for message in messages:
        message.content["arrays"], message.content["scatter"] = shared, small
    rays.deaths = [ActorDiedError()]
    grid = ClusterGrid(2, "code", "data", rays.hire)
    deliver(grid, messages, 60.0, Expected(), deployed=False)
    assert rays.stored == [shared]
    assert len(rays.calls) == 4
    for message, clients, rows, records in rays.calls:
        assert [*message.content] == ["config", "scatter"]
        assert (clients, rows) == ([], ())
        assert [records["arrays"].result] == rays.stored
    assert all([*message.content] == ["config", "arrays", "scatter"] for message in messages)  # as they were
    deliver(grid, messages, 60.0, Expected(), deployed=False)
    assert rays.stored == [shared, shared]  # nothing of an earlier exchange is kept


def test_clients_run_where_their_rows_are(rays: Rays, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client's rows are stored once; idle workers of both nodes get the clients that were there before."""
    monkeypatch.setattr(stock_module, "ray", rays)
    rays.places = [A, B]
    stock = Stock(lambda client: np.full(int(client[1:]), 1.0), 10)
    grid = ClusterGrid(2, "code", "data", rays.hire, stock)
    for _ in rays.avoided:
        grid._look()  # until both workers are ready
    _exchange(grid, 2)
    assert [(clients, [row.result.tolist() for row in rows]) for _, clients, rows, _ in rays.calls] == [
        (["c1"], [[1.0]]), (["c2"], [[1.0, 1.0]])
    ]  # fmt: skip
    before = {event[1]: event[0] for event in rays.events}
    grid._idle.reverse()
    _exchange(grid, 2)
    assert len(rays.stored) == 2
    assert {event[1]: event[0] for event in rays.events[2:]} == before
    assert stock.said() == "a 1 of 10 (10%, 0.0 MB), b 2 of 10 (20%, 0.0 MB)"


def test_a_worker_puts_together_what_travelled_apart() -> None:
    """Records go into the message, and the rows to what computes, before it gets the message."""
    events: list[Any] = []

    def answer(message: Message, own: str) -> Message:
        events.append([*message.content])
        return message

    node = SimpleNamespace(answer=answer, held_back=list, hold_back=list)
    worker = Worker()
    worker._part = Part(node, "code", "data", events.append)  # type: ignore[arg-type]
    message = Message(RecordDict({"config": ConfigRecord({})}), 1, "train")
    worker.answer(message, "0", ["7", "8"], "rows of 7", "rows of 8", arrays=flat({"a": np.ones(2)}))
    assert events == [{"7": "rows of 7", "8": "rows of 8"}, ["config", "arrays"]]
