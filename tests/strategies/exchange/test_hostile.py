"""Devices that lie: nothing they say ends a run, counts for more than their due, or commands a terminal."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from rich.console import Console

from florilegium.apps.runs.progress import read_progress
from florilegium.apps.runs.watch import page
from florilegium.clients.core.reports import ALWAYS, MOST_EXAMPLES
from florilegium.clients.core.wire import Announcement, Reply, Request, Work, unpack
from florilegium.clients.layers.noise import WITHIN
from florilegium.common.foreign import printable, spreadsheet_cell
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.exchange.roster import Member, Roster
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import FIRST_NODE
from tests.runs import Runs
from tests.support import assert_rounded, settings

EVIL = "\x1b[2J\x1b]0;owned\x07\n=cmd|'/C calc'!A0\u202e"
"""Clears the screen, sets the window's title, begins another line with a formula, reverses the text after it."""

Lie = Callable[[Reply, float], Reply]


def _metric(name: str, value: float) -> Lie:
    return lambda honest, cap: replace(honest, metrics={**honest.metrics, name: [value]})


def _scaled(to: float) -> Lie:
    """Return updates whose entries are all of one size."""
    return lambda honest, cap: replace(
        honest, arrays={n: a if n == WITHIN else np.full_like(a, to) for n, a in honest.arrays.items()}
    )


def _without(name: str) -> Lie:
    return lambda honest, cap: replace(honest, metrics={n: v for n, v in honest.metrics.items() if n != name})


LIES: dict[str, Lie] = {
    "has weight 4.61169e+18|not between 0": _metric("weight", 2.0**62),
    "at most .* is its due": lambda honest, cap: replace(honest, metrics={**honest.metrics, "weight": [cap + 1]}),
    "at least 1 is an example's": _metric("weight", 0.0),
    "'num-examples' of client liar is 1e.06, announced were": _metric("num-examples", 1e6),
    "number 'bytes-down' is": _metric("bytes-down", 1.7e308),
    "its numbers 'bytes-up' are": _metric("bytes-up", float("nan")),
    "numbers above 1e.15": _scaled(3e38),
    r"an update has norm .* \(max-update-norm\)": _scaled(1e3),
    "not one that this method's clients report": _metric(EVIL, 1.0),
    "number 'epsilon' is not one": _metric("epsilon", 0.1),
    "number 'accuracy' is inf, not between 0 and 1": _metric("accuracy", float("inf")),
    "number 'loss' is -1e.300, not between -0.0001 and 1e.15": _metric("loss", -1e300),
    "number 'loss' is -1e.06": _metric("loss", -1e6),
    "its numbers 'num-examples'": _without("num-examples"),
    r"\\x1b\[2J": lambda honest, cap: Reply([], {}, {}, {honest.clients[0]: EVIL}),
    "to run old, attempt 1, round 9, phase 'train', expected is run": lambda honest, cap: replace(
        honest, mark=Work(9, identity="old").mark("train")
    ),
    "it replies for the clients": lambda honest, cap: replace(honest, clients=[EVIL * 9999]),
}
"""What a device makes of its honest reply, by a pattern of the reason why it is not used; with the cap on weights."""


def _nodes(folder: Path) -> list[dict[str, Any]]:
    federation, dataset = federate(settings(num_clients=2, partitioner="iid"))
    for i in range(2):
        write_device(federation, dataset, i, folder / str(i))
    return [{"client-id": name, "data-path": str(folder / str(i))} for i, name in enumerate(("honest", "liar"))]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return what carries out runs on two devices, the second of which lies."""
    monkeypatch.setattr(Roster, "ask_again", lambda *_: None)  # it would announce the same
    keys: dict[str, Value] = {
        "method": "fedavg", "model": "linear", "num-clients": 2, "partitioner": "iid", "participation": 1.0,
        "local-steps": 1, "evaluate-every": 0, "min-success": 0.5, "state-dir": str(tmp_path / "state"),
    }  # fmt: skip
    runs, nodes = Runs(tmp_path, keys), _nodes(tmp_path / "data")

    def start(name: str, **rest: Any) -> Path:
        path = runs(name, nodes=nodes, **rest)
        start.grid = runs.grid  # type: ignore[attr-defined]
        return path

    return start


def test_replies_name_the_run_attempt_round_and_phase(run: Callable[..., Path]) -> None:
    run("named", rounds=1, **{"evaluate-every": 1})
    first = [(Reply.unpack(r.content).mark, m.content["config"]["phase"]) for m, r in _pairs(run)]
    run("named", rounds=2, resume="named", **{"evaluate-every": 1})
    second = [(Reply.unpack(r.content).mark, m.content["config"]["phase"]) for m, r in _pairs(run)]
    identity = first[0][0].split(",")[0]
    assert {phase for _, phase in first} == {phase for _, phase in second} == {"train", "test"}
    for attempt, number, found in ((1, 1, first), (2, 2, second)):
        assert [mark for mark, _ in found] == [
            f"{identity}, attempt {attempt}, round {number}, phase '{phase}'" for _, phase in found
        ]


def _pairs(run: Any) -> list[tuple[Any, Message]]:
    """Return the requests for phases of the last run, and the replies."""
    pairs = zip(run.grid.sent, run.grid.received, strict=True)
    return [(sent, reply) for sent, reply in pairs if "query" not in sent.metadata.message_type]


def _reply(message: Message, lies: list[Lie]) -> Message | None:
    """Return the lie that the second device tells in a round, if the message is for it."""
    config = message.content.get("config", {})
    if message.metadata.dst_node_id != FIRST_NODE + 1 or message.metadata.message_type != "train":
        return None
    sent, cap = unpack(message.content["arrays"]), float(config.get("heaviest", 1.0))  # type: ignore[arg-type]
    numbers = {**{name: [1.0] for name in ALWAYS}, "loss": [0.5], "weight": [cap]}
    honest = Reply(["liar"], {name: np.zeros_like(array) for name, array in sent.items()}, numbers, {})
    return Message(lies[int(config["round"]) - 1](honest, cap).pack(), reply_to=message)  # type: ignore[arg-type]


def _reasons(path: Path) -> list[str]:
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert {line["client"] for line in lines} == {"liar"}
    return [line["reason"] for line in lines]


def test_a_device_that_lies_in_every_round_is_left_out_of_each(
    run: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The model is that of the others, whose weights are within the bound, too."""

    def truth(message: Message) -> Message | None:
        def fails(honest: Reply, cap: float) -> Reply:
            return Reply([], {}, {}, {"liar": "it is away"})

        return _reply(message, [fails] * len(LIES))

    keys: dict[str, Value] = {"rounds": len(LIES), "max-weight-ratio": 0.5}
    with caplog.at_level(logging.INFO):
        path = run("lies", intercept=lambda message: _reply(message, [*LIES.values()]), **keys)
    told = [
        reply.content["outcome"]["values"]  # type: ignore[index]
        for reply in run.grid.received  # type: ignore[attr-defined]
        if reply.metadata.src_node_id == FIRST_NODE and "arrays" in reply.content
    ]
    sizes = federate(settings(num_clients=2, partitioner="iid"))[0].train.sizes
    assert all(0.5 * np.median(sizes) in values for values in told)
    for pattern, reason in zip(LIES, _reasons(path), strict=True):
        assert re.search(pattern, reason), (pattern, reason)
        assert len(reason) <= 600
        assert reason.isprintable()
    assert all(record.getMessage().isprintable() for record in caplog.records)
    console = Console(record=True, width=200)
    console.print(page(path.name, read_progress(path)))
    assert all(character.isprintable() or character == "\n" for character in console.export_text())
    summary = json.loads((path / "summary.json").read_text())
    assert "privacy" not in summary
    assert 0.0 <= summary["final"]["seen"]["accuracy"] <= 1.0
    honest = read_checkpoint(run("truth", intercept=truth, **keys)).arrays
    for name, array in read_checkpoint(path).arrays.items():
        assert_rounded(array, honest[name])


def test_what_is_said_of_an_evaluation_is_checked_too(run: Callable[..., Path]) -> None:
    def boast(message: Message) -> Message | None:
        if message.metadata.message_type != "evaluate" or message.metadata.dst_node_id != FIRST_NODE + 1:
            return None
        numbers = {**{name: [1.0] for name in ALWAYS}, "accuracy": [7.0], "loss": [0.0]}
        return Message(Reply(["liar"], {}, numbers, {}).pack(), reply_to=message)

    path = run("boast", rounds=1, intercept=boast)
    assert len((path / "clients.csv").read_text().splitlines()) == 2
    assert _reasons(path) == ["unusable reply: number 'accuracy' is 7, not between 0 and 1"]


PRIVATE: dict[str, Value] = {
    "weighting": "uniform", "privacy.unit": "client", "privacy.sampling": "fixed", "privacy.clip-norm": 0.5,
    "privacy.noise-multiplier": 0.1, "privacy.clip-quantile": 0.5,
}  # fmt: skip


def test_what_is_not_clipped_is_not_summed(run: Callable[..., Path]) -> None:
    """Under client-level privacy: ‖sum‖ ≤ n·C, and the count of those within the bound lies in ±n/2."""

    def beside(within: float) -> Lie:
        return lambda honest, cap: replace(honest, arrays={**honest.arrays, WITHIN: np.array([within])})

    lies: dict[str, Lie] = {
        "an update has norm": lambda honest, cap: _scaled(1.0)(beside(0.5)(honest, cap), cap),
        "within-bound' is .-60": beside(-60.0),
        "within-bound' is .-1000000": beside(-1e6),
    }
    path = run("private", rounds=3, intercept=lambda message: _reply(message, [*lies.values()]), **PRIVATE)
    for pattern, reason in zip(lies, _reasons(path), strict=True):
        assert re.search(pattern, reason), (pattern, reason)
    assert json.loads((path / "summary.json").read_text())["privacy"]["clip_norm"] < 0.7


def _answer(arrays: dict[str, np.ndarray], clients: int = 1) -> Message:
    ids = [str(i) for i in range(clients)]
    request = Message(Request(ids, "train", "delta", Work(1)).pack(None), 1, "train")
    return Message(Reply(ids, arrays, dict.fromkeys(ALWAYS, [1.0] * clients), {}).pack(), reply_to=request)


@pytest.mark.parametrize("clients", [1, 9])
def test_noise_of_devices_fits_and_more_does_not(clients: int) -> None:
    """With noise of deviation s on each entry the bound is n·C + s·√n·(√d + 10)."""
    sent, rng, ids = {"w": np.zeros(400)}, np.random.default_rng(1), [str(i) for i in range(clients)]
    expected = Expected(changes_of=sent, longest=0.5, noise=2.0, within_noise=0.3, within=True)
    noise = rng.normal(scale=2 * np.sqrt(clients), size=400)
    within = np.array([0.5 * clients + rng.normal(scale=0.3 * np.sqrt(clients))])
    expected.read(_answer({"w": noise + 0.5 * clients / 20, WITHIN: within}, clients), ids)
    with pytest.raises(ValueError, match="an update has norm"):
        expected.read(_answer({"w": noise * 2}, clients), ids)
    with pytest.raises(ValueError, match="within-bound"):
        expected.read(_answer({"w": noise, WITHIN: within + 4 * np.sqrt(clients)}, clients), ids)
    for shape in ((), (1, 1), (2,)):
        with pytest.raises(ValueError, match="one number for each client is expected"):
            expected.read(_answer({"w": noise, WITHIN: np.zeros(shape)}, clients), ids)
    with pytest.raises(ValueError, match="was not sent to it"):
        replace(expected, within=False).read(_answer({"w": noise, WITHIN: within}, clients), ids)


@pytest.mark.parametrize(
    "lie",
    [
        {"train": [2**62]}, {"train": [MOST_EXAMPLES + 1]}, {"test": [-1]}, {"train": [True]}, {"labeled": [1]},
        {"capacities": [0.0]}, {"capacities": [1.5]}, {"capacities": [1]},
        {"clients": ["a" * 10**6]}, {"clients": ["=1+1"]}, {"clients": ["a\x1b[2J"]}, {"code": EVIL * 9999},
        {"packages": [EVIL * 9999]}, {"wire": EVIL * 9999}, {"wire": 2**62}, {"wire": True},
        {"validation": [1, 2]}, {"validation": [-1]}, {"validation": ["1"]}, {"validation": [10**12]},
    ],
)  # fmt: skip
def test_announcements_are_checked(lie: dict[str, Any]) -> None:
    roster = Roster(list, 1, "code")
    query = Message(Request([], "", "", Work(0)).pack(None), 3, "query.roster")
    content = Announcement(True, "code", ["a"], [5], [1], [True], capacities=[0.5]).pack()
    roster._enrol(3, Message(content, reply_to=query), real=True)
    assert roster._announced(3, Announcement.unpack(content), True) == [Member("a", 5, 1, node=3, capacity=0.5)]
    for name, value in lie.items():
        content["roster"][name] = value  # type: ignore[index]
    roster._enrol(3, Message(content, reply_to=query), real=True)
    assert roster._refused[3].isprintable()
    assert len(roster._refused[3]) <= 500


def test_an_error_is_one_line_of_plain_characters() -> None:
    from florilegium.strategies.exchange.exchange import describe_error

    query = Message(Request([], "", "", Work(0)).pack(None), 3, "train")
    said = describe_error(Message(Error(1, f"first\n{EVIL}" * 999), reply_to=query))
    assert said.isprintable()
    assert len(said) <= 500


def test_text_for_terminals_and_spreadsheets() -> None:
    assert printable("é α 🌻 = fine") == "é α 🌻 = fine"
    assert printable(EVIL) == r"\x1b[2J\x1b]0;owned\x07\n=cmd|'/C calc'!A0\u202e"
    assert [spreadsheet_cell(text) for text in ("=1", "-1", "@a", "a=1", "")] == ["'=1", "'-1", "'@a", "a=1", ""]
