"""Robust aggregation and bounded updates: rules by hand, and runs with clients or nodes that answer anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import ALWAYS
from florilegium.clients.core.wire import BESIDE, Reply, Request, Work, unpack
from florilegium.clients.fedavg import FedAvgClient
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.exchange import collect
from florilegium.strategies.exchange.expected import Expected
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers.trusted import check_examples
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings, mean_of
from florilegium.strategies.robust.stack import Stack
from tests.fingerprints import cases
from tests.runs import Runs
from tests.support import adapting, assert_rounded, settings

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 7, "participation": 1.0, "rounds": 1, "local-epochs": 1,
    "learning-rate": 0.05, "batch-size": 32, "weighting": "uniform", "evaluate-every": 0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


@pytest.mark.parametrize(("rule", "needed"), [("median", 5), ("krum", 7), ("bulyan", 11), ("foolsgold", 2)])
def test_too_few_clients(run: Runs, rule: str, needed: int) -> None:
    keys: dict[str, Value] = {"aggregation": rule, "attackers": 2, "rounds": 2, "min-success": 0.1, "num-clients": 12}
    for fewer in ({"cohort-size": needed - 1}, {"participation": 1.0, "final-participation": (needed - 1) / 12}):
        with pytest.raises(ConfigurationError, match=rf"'{rule}' with attackers = 2 needs {needed} clients, but a coh"):
            run("refused", **{**keys, **fewer})


@pytest.mark.parametrize("method", [n for n, m in METHODS.items() if why_not(m, "robust aggregation")])
def test_methods_that_average_no_updates_refuse_other_rules(run: Runs, method: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"'median' is not supported by method '{re.escape(method)}': it .*'mean'"
    ):
        run("refused", **{**cases()[method], **adapting(method, "fc.1"), "aggregation": "median"})


class Middle(Rule):
    """A rule of another package: the mean of all but the shortest and the longest f updates."""

    title, source = "the mean of the updates of middle length", "own work"

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        order = np.argsort(stack.lengths())[self.attackers : len(stack) - self.attackers]
        return mean_of(stack, order)


def test_a_rule_of_another_package(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    _attacked(monkeypatch)
    path = run("own", rounds=2, aggregation=f"{__name__}:Middle", attackers=2)
    summary = json.loads((path / "summary.json").read_text())["robust"]
    assert summary["combined"] == 2
    assert summary["excluded"]["2"] == summary["excluded"]["5"] == 2
    assert sum(summary["excluded"].values()) == 2 * 4
    with pytest.raises(ConfigurationError, match="aggregation: 'kurm' is not a rule that combines updates; did you"):
        run("refused", aggregation="kurm")
    with pytest.raises(ConfigurationError, match=r"aggregation: '.*:KEYS' is not .*expected a subclass of Rule"):
        run("refused", aggregation=f"{__name__}:KEYS")


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"aggregation": "krum", "attackers": 1, "robust.mixing": "bucketing"}, "'bucketing' needs 9 clients"),
        ({"aggregation": "median", "attackers": 3, "robust.mixing": "bucketing"}, "needs 13 clients"),
        ({"aggregation": "norm-bound", "attackers": 4, "robust.mixing": "nearest-neighbours"}, "needs 9 clients"),
        ({"aggregation": "foolsgold", "robust.mixing": "bucketing"}, "robust.mixing: 'foolsgold' follows single"),
        ({"aggregation": "fltrust"}, "'fltrust' needs examples of the server's own with labels: set server-examples"),
        (
            {"aggregation": "fltrust", "method": "fedper", "model": "mlp", "server-examples": 9},
            "'fltrust' has the server train as clients do, and with method 'fedper' it has no 'fc3.weight'",
        ),
        ({"aggregation": "multi-krum", "multi-krum.selected": -1}, "multi-krum.selected"),
    ],
)
def test_what_a_rule_needs_is_checked_before_the_run(run: Runs, keys: dict[str, Value], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        run("refused", **keys)


@pytest.mark.parametrize(
    "keys",
    [
        {"aggregation": "centred-clipping", "robust.momentum": 0.9},
        {"aggregation": "foolsgold"},
        {"aggregation": "median", "robust.mixing": "bucketing"},
        {"aggregation": "fltrust", "server-examples": 20},
        {"aggregation": "norm-bound", "norm-bound.noise": 0.01},
    ],
)
def test_resumed_runs_remember(run: Runs, keys: dict[str, Value]) -> None:
    """What rules keep of earlier rounds, and what they draw, is that of the run that was not broken off."""
    whole, broken = run.whole_and_broken(3, rounds=4, **{"evaluate-every": 1, **keys})
    np.testing.assert_array_equal(_model(whole), _model(broken))
    reports = [json.loads((path / "summary.json").read_text())["robust"] for path in (whole, broken)]
    assert reports[0]["excluded"] == reports[1]["excluded"]
    assert reports[0]["combined"] == reports[1]["combined"] == 4


def test_momentum_averages_each_clients_updates_over_rounds(run: Runs) -> None:
    """With norm bounding that bounds nothing, the second round's step is β times the first plus (1 − β) new ones."""
    keys: dict[str, Value] = {"aggregation": "norm-bound", "norm-bound.norm": 1e9}
    first, plain = _model(run("one", **keys)), _model(run("two", rounds=2, **keys))
    start = np.concatenate([a.ravel() for a in unpack(_first_sent(run)).values()])
    slow = _model(run("slow", rounds=2, **{**keys, "robust.momentum": 0.75}))
    assert_rounded(slow - first, 0.75 * (first - start) + 0.25 * (plain - first))


def _first_sent(run: Runs) -> Any:
    return next(message for message in run.grid.sent if message.metadata.message_type == "train").content["arrays"]


def test_fltrust_follows_the_servers_own_training(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attackers that are almost all clients turn nothing; the step is no longer than the server's own update."""
    honest = FedAvgClient.train

    def train(client: FedAvgClient, arrays: Arrays) -> Answer:
        answer = honest(client, arrays)
        if client.client_id != "3":
            for name, array in answer.arrays.items():
                array -= 20 * (array - arrays[name])
        return answer

    monkeypatch.setattr(FedAvgClient, "train", phase(train))
    keys: dict[str, Value] = {"partitioner": "iid", "server-examples": 100}
    path = run("trusted", rounds=3, aggregation="fltrust", attackers=6, **keys)
    excluded = json.loads((path / "summary.json").read_text())["robust"]["excluded"]
    assert excluded == dict.fromkeys("012456", 3)
    with pytest.raises(ConfigurationError, match="those of server-data have none"):
        check_examples(settings(**{**KEYS, **keys, "server-data": "/a/file.parquet"}), deployed=False)


def test_a_round_in_which_too_few_answer_changes_nothing(run: Runs) -> None:
    """Three of seven are gone in the second of two rounds, and Krum with two attackers needs seven."""

    def strike(message: Message) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 2:
            _without("0", "1", "2")(message)

    keys: dict[str, Value] = {"aggregation": "krum", "attackers": 2, "min-success": 0.1}
    np.testing.assert_array_equal(
        _model(run("missed", rounds=2, nodes=1, intercept=strike, **keys)), _model(run("one", nodes=1, **keys))
    )


def _model(path: Path) -> np.ndarray:
    return np.concatenate([array.ravel() for array in read_checkpoint(path).arrays.values()])


def _attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients 2 and 5 answer absurd models."""
    honest = FedAvgClient.train

    def train(client: FedAvgClient, arrays: Arrays) -> Answer:
        answer = honest(client, arrays)
        if client.client_id in "25":
            for array in answer.arrays.values():
                array += 1e6 if client.client_id == "2" else -3e7
        return answer

    monkeypatch.setattr(FedAvgClient, "train", phase(train))


@pytest.mark.parametrize("rule", ["median", "trimmed-mean", "krum"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_attackers_do_not_move_the_model_far(run: Runs, rule: str, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Value] = {"aggregation": rule, "attackers": 2}
    plain = _model(run("plain"))
    sent = next(message for message in run.grid.sent if message.metadata.message_type == "train")
    start = np.concatenate([a.ravel() for a in unpack(sent.content["arrays"]).values()])
    _attacked(monkeypatch)
    robust = _model(run("robust", nodes=nodes, **keys))
    assert np.linalg.norm(robust - plain) < 5 * np.linalg.norm(plain - start)
    assert np.linalg.norm(_model(run("naive", nodes=nodes)) - plain) > 1e5


def test_without_attackers_a_trimmed_mean_is_the_mean(run: Runs) -> None:
    assert_rounded(_model(run("trimmed", aggregation="trimmed-mean")), _model(run("plain")))


def test_updates_that_are_too_long_are_left_out_and_noted(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    _attacked(monkeypatch)
    path = run("bounded", **{"max-update-norm": 100.0})
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    found = sorted((line["round"], line["phase"], line["client"]) for line in lines)
    assert found == [(1, "train", "2"), (1, "train", "5")]
    assert all("more than max-update-norm = 100" in line["reason"] for line in lines)
    honest = run("honest", nodes=1, intercept=_without("2", "5"))
    assert_rounded(_model(path), _model(honest))


def _without(*clients: str) -> Any:
    """Return what strikes clients off a request for training."""

    def strike(message: Message) -> None:
        if message.metadata.message_type == "train":
            config = message.content["config"]
            config["clients"] = [client for client in config["clients"] if client not in clients]

    return strike


@pytest.mark.parametrize(
    "fault", ["long", "shape", "nan", "stranger", "missing", "more", "heavy", "silent", "nobody", "complex"]
)
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_a_rogue_node_changes_nothing(run: Runs, fault: str, rule: str) -> None:
    """It answers first, whatever it likes, in the place of its clients."""
    keys: dict[str, Value] = {"aggregation": rule, "max-update-norm": 100.0, "min-success": 0.1}

    def answer(message: Message) -> Message | None:
        if message.metadata.message_type != "train" or message.metadata.dst_node_id != 100:
            return None
        clients = list(message.content["config"]["clients"])
        sent = unpack(message.content["arrays"])
        arrays: Arrays = {}
        for name, array in sent.items():
            change = np.full(array.shape, {"long": 1e9, "nan": np.nan}.get(fault, 0.0), array.dtype)
            change = change[..., :-1] if fault == "shape" else change
            change = change.astype(np.complex64) if fault == "complex" else change
            arrays[name] = change if rule == "mean" else np.stack([change] * len(clients))
        if fault == "missing":
            del arrays[min(arrays)]
        if fault == "more":
            arrays["another"] = np.ones((len(clients), 2), np.float32)
        ones = [1.0] * len(clients)
        names = {"stranger": ["0"] * len(clients), "nobody": []}.get(fault, clients)
        ones = [] if fault == "nobody" else ones
        metrics = dict.fromkeys(("num-examples", "weight", "bytes-down", "bytes-up", "loss"), ones)
        if fault == "heavy":
            metrics["weight"] = [1e9] * len(clients)
        if fault == "silent":
            del metrics["num-examples"]
        return Message(Reply(names, arrays, metrics, {}).pack(), reply_to=message)

    path = run("rogue", nodes=3, intercept=answer, **keys)
    failed = {json.loads(line)["client"] for line in (path / "failures.jsonl").read_text().splitlines()}
    asked = next(
        list(m.content["config"]["clients"])
        for m in run.grid.sent
        if (m.metadata.message_type, m.metadata.dst_node_id) == ("train", 100)
    )
    assert failed == set(asked)
    honest = run("honest", nodes=1, intercept=_without(*asked), **keys)
    assert_rounded(_model(path), _model(honest))


def test_what_a_client_does_not_return_beside_the_model_has_not_changed() -> None:
    sent = {"w": np.zeros(2), BESIDE + "v": np.zeros(3)}
    messages = [Message(Request([c], "train", "deltas", Work(1)).pack(None), i, "train") for i, c in enumerate("ab")]
    replies = [
        Message(Reply([client], arrays, {name: [1.0] for name in ALWAYS}, {}).pack(), reply_to=message)
        for client, message, arrays in zip(
            "ab", messages, ({"w": np.ones((1, 2))}, {n: np.full((1, *a.shape), 2.0) for n, a in sent.items()}),
            strict=True,
        )
    ]  # fmt: skip
    outcome = collect("ab", {0: "a", 1: "b"}, replies, Expected(stacked=True, changes_of=sent), deployed=False)
    assert (outcome.clients, outcome.failures) == (["a", "b"], {})
    np.testing.assert_array_equal(outcome.arrays["w"], [[1, 1], [2, 2]])
    np.testing.assert_array_equal(outcome.arrays[BESIDE + "v"], [[0, 0, 0], [2, 2, 2]])


def test_with_noise_on_sums_there_is_a_sum(run: Runs) -> None:
    with pytest.raises(ConfigurationError, match="aggregation: with privacy"):
        run("refused", aggregation="median", **{"privacy.unit": "client", "privacy.noise-multiplier": 1.0})
