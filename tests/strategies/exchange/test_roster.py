"""Who is there: nodes that are silent, late, come and go, share a client, or have too few examples."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.wire import VERSION, Announcement, Reply, Request, Work
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import NoHyper, Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.core.federation import Federation, Setup
from florilegium.strategies.exchange.evaluation import summarise
from florilegium.strategies.exchange.exchange import Parcel, collect, deliver, deliver_all
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.population import Population
from florilegium.strategies.exchange.roster import Member, Roster, _reaches_devices
from florilegium.strategies.layers.example_privacy import expected_trainings
from tests.grid import InProcessGrid
from tests.runs import Runs
from tests.support import TASK, settings


class _Grid:
    """Nodes that answer a given announcement, or nothing.

    Attributes:
        nodes: what each node that is online answers to a question; None: nothing.
        asked: the nodes that were asked, in order.
    """

    def __init__(self, nodes: dict[int, Announcement | None]) -> None:
        self.nodes, self.asked = nodes, []
        self._replies: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.asked.append(message.metadata.dst_node_id)
            message.metadata.__dict__["_message_id"] = f"question {len(self.asked)}"
            answer = self.nodes[message.metadata.dst_node_id]
            if answer is not None:
                self._replies.append(Message(answer.pack(), reply_to=message))
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        replies, self._replies = self._replies, []
        return replies


def _device(client: str, train: int = 5) -> Announcement:
    return Announcement(True, "code", [client], [train], [1], [True], capacities=[1.0])


def _refresh(roster: Roster, grid: Any) -> dict[str, int | None]:
    """Look who is there, and return the node of each client."""
    roster.refresh(grid, 0.01)
    return {name: client.node for name, client in roster.clients.items()}


def test_a_device_needs_the_packages_of_the_run_in_the_same_version() -> None:
    roster = Roster(lambda: [], 1, "code", packages=["fed-mine 0.1.0"])
    grid = _Grid(
        {
            1: replace(_device("a"), packages=["fed-mine 0.1.0"]),
            2: Announcement(True, "", packages=["fed_mine (not installed)"]),
            3: replace(_device("c"), packages=["fed-mine 0.2.0"]),
            4: replace(_device("d"), packages=["x" * 500] * 500),
        }
    )
    assert _refresh(roster, grid) == {"a": 1}
    assert "fed_mine (not installed); needed: fed-mine 0.1.0" in roster._refused[2]
    assert roster._refused[3].startswith("node 3 (client c) has other packages")
    assert "fed-mine 0.2.0; needed: fed-mine 0.1.0" in roster._refused[3]
    assert len(roster._refused[4]) < 2000


def test_a_silent_node_is_asked_more_and_more_rarely() -> None:
    """After pauses of 1, 2, 4, 8, 16, 16 rounds; at once where it was away; and it is taken when it answers."""
    roster, grid, asked = Roster(lambda: [Member("0", 5, 5)], 1, "code"), _Grid({1: None}), []
    for look in range(1, 60):
        before = len(grid.asked)
        _refresh(roster, grid)
        asked += [look] * (len(grid.asked) - before)
    assert asked == [1, 2, 4, 8, 16, 32, 48]
    del grid.nodes[1]
    _refresh(roster, grid)
    grid.nodes[1] = Announcement(False, "code")
    _refresh(roster, grid)
    assert list(roster.clients) == ["0"]
    assert len(grid.asked) == 8


def test_ids_are_sorted_and_follow_the_clients() -> None:
    roster = Roster(list, 1, "code")
    roster.clients = {name: Member(name, 5, 5, unseen=name == "2") for name in ("b", "10", "2", "9", "a")}
    roster.ids("seen").clear()  # a copy
    assert (roster.ids("seen"), roster.ids("unseen")) == (["9", "10", "a", "b"], ["2"])
    assert roster.ids("unseen", "seen") == ["2", "9", "10", "a", "b"]
    roster.clients = {"c": Member("c", 5, 5)}
    assert (roster.ids("seen"), roster.ids("unseen")) == (["c"], [])


def test_a_client_is_its_first_nodes_until_that_has_gone() -> None:
    roster, grid = Roster(list, 1, "code"), _Grid({1: _device("a"), 2: _device("b")})
    assert _refresh(roster, grid) == {"a": 1, "b": 2}
    grid.nodes[3] = _device("a", train=1000)
    for _ in range(3):
        assert _refresh(roster, grid) == {"a": 1, "b": 2}
    assert roster.clients["a"].train == 5
    assert grid.asked == [1, 2, 3]
    del grid.nodes[1]
    assert _refresh(roster, grid) == {"a": 3, "b": 2}


def test_a_device_that_has_restarted_is_told_so_before_anything_worse(caplog: pytest.LogCaptureFixture) -> None:
    roster, grid = Roster(list, 1, "code"), _Grid({1: _device("a")})
    _refresh(roster, grid)
    grid.nodes[2] = _device("a")  # under another id, while the first is still taken for connected
    _refresh(roster, grid)
    (said,) = [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()]
    assert said.index("has just restarted") < said.index("two devices have this client-id")


def test_validation_examples_of_its_own_leave_a_device_all_training_examples() -> None:
    grid = _Grid({1: replace(_device("a", 100), validation=[7]), 2: _device("b", 100)})
    roster = Roster(list, 1, "code")
    _refresh(roster, grid)
    assert [roster.clients[name].without_validation(0.2) for name in "ab"] == [100, 80]


def test_two_that_come_at_once_are_not_both_taken() -> None:
    assert _refresh(Roster(list, 1, "code"), _Grid({1: _device("a"), 2: _device("a")})) == {"a": 1}


def test_who_has_too_few_examples_is_left_out_with_a_reason() -> None:
    grid = _Grid({1: _device("a", 9), 2: _device("b", 10)})
    roster, other = Roster(list, 2, "code"), Roster(list, 2, "code")
    roster.unfit = lambda client: "too few" if client.train < 10 else ""
    roster.wait(grid, 1.0)  # type: ignore[arg-type]
    assert list(roster.clients) == ["b"]
    assert roster.left_out == {"a": "too few"}
    other.unfit = lambda client: "none is enough"
    with pytest.raises(RunError, match="all 2 clients are skipped; client a: none is enough"):
        other.wait(_Grid(grid.nodes), 0.01)  # type: ignore[arg-type]


NONSENSE = {
    2: Announcement(True, "other code", ["b"], [5], [1], [True], capacities=[1.0]),
    3: _device("../c"),
    4: _device("d", train=-1),
    5: Announcement(False, "code"),
    6: Announcement(True, "code", ["e"], [5, 6], [1], [True], capacities=[1.0]),
    7: Announcement(True, "code", ["f", "g"], [5, 6], [1, 1], [True, True], capacities=[1.0, 1.0]),
}


def test_flowers_grid_of_devices_has_the_name_that_is_looked_for() -> None:
    from flwr.superlink.grid import HttpGrid

    assert _reaches_devices(HttpGrid.__new__(HttpGrid))
    assert not _reaches_devices(_Grid({}))


@pytest.mark.parametrize("first", [True, False])
def test_who_comes_with_nonsense_does_not_end_the_run(first: bool) -> None:
    class HttpGrid(_Grid):
        """As on a SuperLink, where nodes are devices."""

    roster, grid = Roster(list, 1, "code"), HttpGrid({1: _device("a")})
    if not first:
        _refresh(roster, grid)
    grid.nodes = {**NONSENSE, **grid.nodes}
    assert _refresh(roster, grid) == {"a": 1}
    assert _refresh(roster, grid) == {"a": 1}
    assert len(grid.asked) == 7


def test_where_nobody_fits_the_run_does_not_begin() -> None:
    """At once where as many have come as are expected; else when the time is over."""
    with pytest.raises(RunError, match=r"0 clients are ready, but some nodes were skipped: .* other code"):
        Roster(list, 1, "code").wait(_Grid({2: NONSENSE[2]}), 100.0)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="0 clients are ready"):
        Roster(list, 2, "code").wait(_Grid({2: NONSENSE[2]}), 0.01)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="runs other code"):
        Roster(list, 3, "code").wait(_Grid({1: Announcement(False, "other")}), 100.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("real", [True, False])
def test_the_refusal_names_both_versions_of_the_messages(real: bool) -> None:
    """Whatever the code is; nodes of earlier versions announce no version, which is the first."""
    content = Announcement(real, "code", ["a"], [5], [1], [True], capacities=[1.0]).pack()
    content["roster"]["wire"] = VERSION + 1  # type: ignore[index]
    told = rf"node 3 \(client a\) speaks version {VERSION + 1} of the messages, the server version {VERSION}"
    with pytest.raises(RunError, match=told):
        Roster(list, 1, "code")._announced(3, Announcement.unpack(content), real)
    del content["roster"]["wire"]  # type: ignore[attr-defined]
    with pytest.raises(
        RunError, match=rf"node 3 \(client a\) speaks version 1 of the messages, the server version {VERSION}"
    ):
        Roster(list, 1, "code")._announced(3, Announcement.unpack(content), real)


def test_a_run_goes_on_when_somebody_is_back() -> None:
    """It began with two; one is enough then."""
    roster, grid = Roster(list, 2, "code"), _Grid({1: _device("a"), 2: _device("b")})
    roster.wait(grid, 1.0)  # type: ignore[arg-type]
    grid.nodes = {}
    assert _refresh(roster, grid) == {}
    with pytest.raises(RunError, match=r"no client that can train has come back within 0.01 s \(key round-timeout"):
        roster.wait(grid, 0.01, "round-timeout", lambda: bool(roster.clients))  # type: ignore[arg-type]
    grid.nodes = {2: _device("b")}
    roster.wait(grid, 1.0, "round-timeout", lambda: bool(roster.clients))  # type: ignore[arg-type]
    assert (list(roster.clients), [*roster.away]) == (["b"], ["a"])


def test_a_device_that_has_more_data_by_now_is_asked_anew() -> None:
    roster, grid = Roster(list, 1, "code"), _Grid({1: _device("a"), 2: _device("b")})
    _refresh(roster, grid)
    grid.nodes[1] = _device("a", train=8)
    assert _refresh(roster, grid) == {"a": 1, "b": 2}
    roster.ask_again("a")
    assert _refresh(roster, grid) == {"a": 1, "b": 2}
    assert (roster.clients["a"].train, roster.nodes, grid.asked) == (8, [1, 2], [1, 2, 1])


def test_a_device_that_names_another_client_when_it_is_asked_anew_is_refused() -> None:
    roster, grid = Roster(list, 1, "code"), _Grid({1: _device("a"), 2: _device("b")})
    _refresh(roster, grid)
    grid.nodes[1] = _device("c")
    roster.ask_again("a")
    assert _refresh(roster, grid) == {"b": 2}
    assert "was client a" in roster._refused[1]
    grid.nodes = {2: _device("b")}
    _refresh(roster, grid)
    grid.nodes = {1: _device("a"), 2: _device("b")}  # its operator has put it right
    assert _refresh(roster, grid) == {"b": 2, "a": 1}


def test_a_device_that_is_unfit_by_now_takes_no_part() -> None:
    roster, grid = Roster(list, 1, "code"), _Grid({1: _device("a"), 2: _device("b")})
    roster.unfit = lambda client: "" if client.train else "it has no training examples"
    _refresh(roster, grid)
    grid.nodes[1] = _device("a", train=0)
    roster.ask_again("a")
    assert _refresh(roster, grid) == {"b": 2}
    assert roster.left_out == {"a": "it has no training examples"}


class _SlowGrid(_Grid):
    """Nodes that answer one after the other, each for the client it is asked for; one is of no use."""

    def __init__(self, useless: int, answer: Reply) -> None:
        super().__init__(dict.fromkeys(range(5)))
        self._useless, self._answer, self.pulled = useless, answer, 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"question {node}"
            answer = self._answer if node == self._useless else _answer(str(node), 1.0)
            self._replies.append(Message(answer.pack(), reply_to=message))
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        self.pulled += 1
        return [self._replies.pop()]  # the last one asked is the first to answer


def _request(client: str) -> RecordDict:
    return Request([client], "train", "sum", Work(1)).pack(None)


def _answer(client: str, change: float) -> Reply:
    numbers = {name: [1.0] for name in ALWAYS}
    return Reply([client], {"w": np.array([change])}, numbers, {})


@pytest.mark.parametrize(
    ("useless", "answer", "wanted"),
    [
        (-1, _answer("4", 1.0), {3, 4}),
        (4, Reply([], {}, {}, {"4": "no"}), {2, 3, 4}),
        (4, _answer("4", np.nan), {2, 3, 4}),
        (4, _answer("1", 1.0), {2, 3, 4}),
    ],
    ids=["all are of use", "one failed", "one has NaN", "one speaks for another"],
)
def test_the_first_answers_of_use_count(useless: int, answer: Reply, wanted: set[int]) -> None:
    grid: Any = _SlowGrid(useless, answer)
    messages = [Message(_request(str(node)), node, "train") for node in range(5)]
    replies = deliver(grid, messages, 5.0, Expected(shapes={"w": (1,)}), deployed=False, enough=2)
    assert {node for node, reply in enumerate(replies) if not reply.has_error()} == wanted
    late = {str(reply.error.reason) for reply in replies if reply.has_error()}
    assert late == {"not among the first 2 to reply (key oversample)"}
    assert grid.pulled == len(wanted)


def test_exchanges_at_the_same_time_wait_for_as_many_replies_as_each_needs() -> None:
    grid: Any = _SlowGrid(-1, _answer("4", 1.0))
    messages = [Message(_request(str(node)), node, "train") for node in range(5)]
    parcels = [Parcel(messages[:2], Expected(shapes={"w": (1,)}), enough=1), Parcel(messages[2:], Expected())]
    first, second = deliver_all(grid, parcels, 5.0, deployed=False)
    assert [reply.has_error() for reply in second] == [False] * 3
    assert [reply.has_error() for reply in first] == [True, False]  # all were asked before the last replied first
    assert first[0].error.reason == "not among the first 1 to reply (key oversample)"


class ObjectPullError(Exception):
    """Named as Flower's error for a part of a reply that has not arrived."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("not a message"), "it cannot be read"),
        (ObjectPullError("Failed to pull object 1f2e"), "its device went away before all of the reply had arrived"),
    ],
)
def test_an_answer_that_cannot_be_read_is_that_of_one_node(
    error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid: Any = _SlowGrid(-1, _answer("0", 1.0))

    def pull(ids: Iterable[str]) -> list[Message]:
        wanted = list(ids)
        if "question 2" in wanted:
            raise error
        chosen = [reply for reply in grid._replies if f"question {reply.metadata.src_node_id}" in wanted]
        grid._replies = [reply for reply in grid._replies if reply not in chosen]
        return chosen

    grid.pull_messages = pull
    messages = [Message(_request(str(node)), node, "train") for node in range(4)]
    replies = deliver(grid, messages, 5.0, Expected(shapes={"w": (1,)}), deployed=False)
    assert [reply.has_error() for reply in replies] == [False, False, True, False]
    asked = {node: [str(node)] for node in range(4)}
    outcome = collect([*"0123"], asked, replies, Expected(shapes={"w": (1,)}), deployed=False)
    assert (outcome.clients, outcome.failures) == (["0", "1", "3"], {"2": f"unusable reply: {said}"})
    told = " ".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert f"the reply of 2 is unusable: {said}" in told
    assert "1f2e" not in told  # nobody knows a client by an object's id


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((1, 3), np.complex64), "complex64, not of numbers"),
        (np.zeros((1, 3), np.longdouble), "not of numbers of 64 bits or fewer"),
        (np.zeros((1, 3), bool), "bool, not of numbers"),
        (np.zeros((1, 4)), "expected {'w': \\(3,\\)}"),
        (np.zeros((2, 3)), "2 rows for 1 clients"),
        (np.zeros(()), "."),
    ],
)
def test_what_cannot_be_used(array: Any, said: str) -> None:
    numbers = {name: [1.0] for name in ALWAYS}
    request = Message(_request("a"), 1, "train")
    expected = Expected(stacked=True, shapes={"w": (3,)})
    assert expected.read(Message(Reply(["a"], {"w": np.ones((1, 3))}, numbers, {}).pack(), reply_to=request), ["a"])
    with pytest.raises((ValueError, TypeError), match=said):
        expected.read(Message(Reply(["a"], {"w": array}, numbers, {}).pack(), reply_to=request), ["a"])


def test_devices_without_tests_have_no_part_in_figures() -> None:
    metrics = {"accuracy": np.array([0.5, np.nan, 1.0, 0.7]), "loss": np.array([1.0, np.nan, 3.0, np.nan])}
    figures = summarise(metrics, np.array([10.0, 0.0, 30.0, 0.0]), TASK)
    assert figures["accuracy_weighted"] == pytest.approx(0.875)
    assert (figures["std"], figures["worst_decile"]) == (0.25, 0.5)
    assert "std" not in summarise({"accuracy": np.array([0.5])}, np.array([0.0]), TASK)


DEVICES: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 4, "partitioner": "iid", "rounds": 2, "local-epochs": 1,
    "weighting": "uniform", "evaluate-every": 0, "min-success": 1.0,
}  # fmt: skip


def _nodes(folder: Path) -> list[dict[str, Any]]:
    federation, dataset = federate(settings(num_clients=4, partitioner="iid"))
    for i in range(4):
        write_device(federation, dataset, i, folder / str(i))
    return [{"client-id": f"d{i}", "data-path": str(folder / str(i))} for i in range(4)]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Return what carries out runs on four devices."""
    runs, nodes = Runs(tmp_path, DEVICES), _nodes(tmp_path / "data")
    return lambda name, **keys: runs(name, nodes=nodes, **{"state-dir": str(tmp_path / "state"), **keys})


@pytest.mark.parametrize(
    ("method", "phase"), [("fedavg", "train"), pytest.param("pfedhn", "adapt", marks=pytest.mark.long)]
)
def test_more_devices_are_asked_than_count(run: Callable[..., Path], method: str, phase: str) -> None:
    """Of a cohort of 2 drawn as 3, two count: min-success = 1 is about those."""
    path = run("more", method=method, participation=0.5, oversample=1.5)
    late = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert [(line["round"], line["phase"]) for line in late] == [(1, phase), (2, phase)]


def test_privacy_budgets_count_all_that_are_asked() -> None:
    """Of four devices two are needed and ⌈1.3 · 2⌉ = 3 are asked: each trains in three rounds of four."""
    options = settings(rounds=4, participation=0.5, oversample=1.3, **{"evaluate-every": 0})
    roster: Any = SimpleNamespace(deployed=True)
    method: Any = SimpleNamespace(trainable=lambda: [*"abcd"])
    federation = Federation(Setup(options, NoHyper(), BaseClient, roster, cast(Any, None)), method)
    assert len(federation.sample(1)) == 3
    assert expected_trainings(options, federation.shares()) == {"trainings": 3.0, "tests": 1.0}


def test_a_device_counts_for_a_bounded_number_of_examples() -> None:
    roster, grid = Roster(list, 3, "code"), _Grid({1: _device("a", 10), 2: _device("b", 30), 3: _device("c", 10**9)})
    _refresh(roster, grid)
    assert roster.heaviest(10.0) == 300
    assert roster.heaviest(0.0) is None
    assert Population(settings(), roster, None).dues("abc") == {"a": 10, "b": 30, "c": 300}


def test_a_round_of_answers_that_are_of_no_use_ends_the_run(run: Callable[..., Path]) -> None:
    with pytest.raises(RunError, match=r"only 0 of 4 clients succeeded"):
        run("nobody", participation=1.0, oversample=1.5, **{"max-update-norm": 1e-9})


def test_with_noise_nobody_may_be_late(run: Callable[..., Path]) -> None:
    with pytest.raises(ConfigurationError, match="oversample: which clients reply first"):
        run("noisy", oversample=1.5, **{"privacy.unit": "client", "privacy.noise-multiplier": 1.0})


def test_left_out_devices_are_in_the_summary(run: Callable[..., Path]) -> None:
    sizes = federate(settings(num_clients=4, partitioner="iid"))[0].train.sizes
    path = run("small", participation=1.0, **{"min-examples": int(np.max(sizes))})
    summary = json.loads((path / "summary.json").read_text())
    assert set(summary.get("left_out", {})) == {f"d{i}" for i in range(4) if sizes[i] < np.max(sizes)}
    assert summary["clients"] + len(summary.get("left_out", {})) == 4
    assert all(f"fewer than min-examples = {np.max(sizes)}" in why for why in summary["left_out"].values())


def test_a_device_without_labels_is_left_out_where_labels_are_needed(run: Callable[..., Path], tmp_path: Path) -> None:
    """PeFLL with an embedding that looks at labels: the run is that of the others."""
    nodes = _nodes(tmp_path / "data")
    nodes[1]["labeled"] = False
    keys: dict[str, Value] = {
        "method": "pefll", "participation": 1.0, "local-steps": 2, "pefll.hidden-width": 8, "pefll.descriptor-size": 4,
        "state-dir": str(tmp_path / "state"),
    }  # fmt: skip
    runs = Runs(tmp_path, {**DEVICES, **keys})
    left_out = json.loads((runs("linear", nodes=nodes) / "summary.json").read_text())["left_out"]
    assert left_out == {"d1": "it has no labels, and pefll.embedding = 'linear' looks at them"}


def test_a_device_that_comes_later_is_asked_from_then_on_and_gets_its_model(tmp_path: Path) -> None:
    """With FedPer: it has no head of its own before its first round."""
    nodes, asked = _nodes(tmp_path / "data"), []
    runs = Runs(
        tmp_path, {**DEVICES, "method": "fedper", "model": "mlp", "participation": 1.0, "rounds": 3, "num-clients": 3}
    )

    def note(message: Message) -> None:
        if message.metadata.message_type == "train":
            asked.append((message.content["config"]["round"], *message.content["config"]["clients"]))

    online = InProcessGrid.get_node_ids

    def later(grid: Any) -> list[int]:
        return list(online(grid))[: 4 if len(asked) >= 3 else 3]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcessGrid, "get_node_ids", later)
        path = runs("late", nodes=nodes, intercept=note, **{"state-dir": str(tmp_path / "state")})
    assert [sorted(name for number, name in asked if number == round_) for round_ in (1, 2, 3)] == [
        ["d0", "d1", "d2"], ["d0", "d1", "d2", "d3"], ["d0", "d1", "d2", "d3"]
    ]  # fmt: skip
    tested = (path / "clients.csv").read_text().splitlines()[1:]
    assert [line.split(",")[0] for line in tested] == ["d0", "d1", "d2", "d3"]
    assert (tmp_path / "state" / "late" / "d3" / "model.safetensors").exists()
