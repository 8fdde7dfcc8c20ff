"""Secure sums of random groups: what a rule makes of their means, what liars and vanished ones do, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from flwr.app import Error, Message

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.fedavg import FedAvgClient
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.flower_inside import ErrorCode
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers.secure_groups import check, most_colluding
from florilegium.strategies.robust.registry import RULES
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack
from tests.grid import FIRST_NODE
from tests.runs import Runs
from tests.support import settings

ROOT = Path(__file__).parents[3]

ALL: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 12, "participation": 1.0, "rounds": 1, "local-epochs": 1,
    "learning-rate": 0.05, "batch-size": 32, "evaluate-every": 0, "seed": 5, "partitioner": "iid",
}  # fmt: skip
GROUPED: dict[str, Value] = {
    "secure-aggregation": True, "secure-groups": 3, "secure-group-size": 4, "secure-colluding": 0.0,
    "max-update-norm": 10.0, "aggregation": "median", "attackers": 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out small runs."""
    return Runs(tmp_path, ALL)


class Seen(Rule):
    """The weighted mean; keeps the rows that it has seen."""

    title, source, needs, weighted = "the mean", "own work", (0, 1), True
    rows: ClassVar[Arrays] = {}
    weights: ClassVar[np.ndarray] = np.empty(0)
    clients: ClassVar[list[str]] = []

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        Seen.rows, Seen.weights, Seen.clients = dict(stack.arrays), stack.weights, [*around.clients]
        return Combined(stack.combination(stack.weights / stack.weights.sum()))


def _model(path: Path) -> np.ndarray:
    return np.concatenate([array.ravel() for array in read_checkpoint(path).arrays.values()])


def _singles(run: Runs, **keys: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all clients' updates of a plain run, (n, d), their weights, and the model from before."""
    after = _model(run("plain", aggregation="tests.strategies.layers.test_secure_groups:Seen", **keys))
    order = np.argsort([int(client) for client in Seen.clients])
    updates = np.concatenate([a.reshape(len(a), -1) for a in Seen.rows.values()], axis=1)[order]
    weights = Seen.weights[order]
    return updates, weights, after - weights @ updates / weights.sum()


def _groups(n: int, k: int) -> list[np.ndarray]:
    return np.array_split(numpy_generator(5, "secure-groups", 1, "train").permutation(n), k)


def test_the_median_of_means_is_that_of_a_plain_runs_updates(run: Runs) -> None:
    """Means within groups are by examples, as clients' weights are; the median counts all groups alike."""
    keys: dict[str, Value] = {"partitioner": "dirichlet", "alpha": 1.0, "weighting": "examples"}
    updates, weights, before = _singles(run, **keys)
    assert len({*weights}) > 1
    means = [weights[own] @ updates[own] / weights[own].sum() for own in _groups(12, 3)]
    found = _model(run("secure", **keys, **GROUPED))
    np.testing.assert_allclose(found, before + np.median(means, axis=0), atol=2e-6)
    noted = read_summary(run.folder / "secure")
    assert noted["secure_aggregation"]["exchanges"] >= 3
    assert noted["secure_aggregation"]["parties"] == 4
    assert noted["robust"]["combined"] == 1


def test_a_share_of_attackers_is_one_of_clients(run: Runs) -> None:
    """A tenth of twenty clients are two, of five groups: the trimmed mean without 2·2 of them is the median."""
    keys: dict[str, Value] = {**GROUPED, "num-clients": 20, "secure-groups": 5, "attackers": 0.1}
    trimmed, median = (_model(run(name, **{**keys, "aggregation": name})) for name in ("trimmed-mean", "median"))
    np.testing.assert_array_equal(trimmed, median)


def test_a_resumed_run_draws_the_same_groups(run: Runs) -> None:
    whole, broken = run.whole_and_broken(2, rounds=2, **GROUPED)
    np.testing.assert_array_equal(_model(whole), _model(broken))


@phase
def lying(client: BaseClient, arrays: Arrays) -> Answer:
    """Train, and return the longest update that is allowed if the client is one of two liars."""
    received = {name: array.copy() for name, array in arrays.items()}
    answer = BaseClient.train(client, arrays)
    if client.client_id not in ("0", "7"):
        return answer
    entries = sum(array.size for array in received.values())
    return replace(
        answer, arrays={name: array + np.float32(9.9 / np.sqrt(entries)) for name, array in received.items()}
    )


def test_liars_spoil_their_groups_and_no_others(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With k = 2f + 1 groups every entry of the median lies between those of honest groups' means."""
    keys: dict[str, Value] = {"num-clients": 20, "weighting": "uniform"}
    updates, _, before = _singles(run, **keys)
    means = [updates[own].mean(axis=0) for own in _groups(20, 5) if not {0, 7} & {*own.tolist()}]
    assert len(means) == 3
    monkeypatch.setattr(FedAvgClient, "train", lying)
    grouped: dict[str, Value] = {**GROUPED, **keys, "secure-groups": 5, "attackers": 2}
    moved = _model(run("secure", **grouped)) - before
    assert (moved >= np.min(means, axis=0) - 1e-5).all()
    assert (moved <= np.max(means, axis=0) + 1e-5).all()
    one_sum = _model(run("mean", **{**grouped, "secure-groups": 1, "aggregation": "mean"})) - before
    assert np.linalg.norm(one_sum - updates.mean(axis=0)) > 0.9  # 2·9.9/20, less what they would have sent


def test_a_group_whose_sum_fails_is_left_out(run: Runs) -> None:
    """Of four clients one may vanish. With two groups of three left the median tolerates nobody: nothing changes."""
    lost = {FIRST_NODE + int(number) for number in _groups(12, 3)[1][:2]}

    def intercept(message: Message) -> Message | None:
        gone = message.metadata.message_type == "train" and message.metadata.dst_node_id in lost
        return Message(Error(ErrorCode.NODE_UNAVAILABLE, "vanished"), reply_to=message) if gone else None

    _, _, before = _singles(run)
    still = run("still", nodes=12, intercept=intercept, **GROUPED)
    np.testing.assert_allclose(_model(still), before, atol=2e-6)
    fewer = run("fewer", nodes=12, intercept=intercept, **{**GROUPED, "attackers": 0})
    assert np.abs(_model(fewer) - before).max() > 1e-3


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"secure-groups": 1}, "aggregation: 'median' compares single clients' updates.*or secure-groups"),
        ({"aggregation": "mean"}, "secure-groups: with aggregation = 'mean', 3 sums show the server more"),
        ({"attackers": 2}, r"secure-groups: 'median' tolerates 2 attackers of 12 clients.*5 groups or more \(found: 3"),
        ({"attackers": 0.25}, "tolerates 3 attackers of 12 clients.*among 7 groups"),
        ({"aggregation": "multi-krum"}, "among 5 groups or more"),
        (
            {"secure-group-size": 5},
            "secure-groups: of the cohort of round 1, 12 clients, 3 groups have 4 each",
        ),
        ({"secure-colluding": 0.25}, "by chance 3 that collude may meet in one: 4 parties are too few"),
        ({"robust.momentum": 0.9}, "robust.momentum: it follows single clients"),
        ({"aggregation": "foolsgold"}, "aggregation: 'foolsgold' follows single clients"),
        ({"method": "ifca"}, "secure-aggregation: it is not supported by method 'ifca'"),
        (
            {"privacy.unit": "client", "privacy.noise-multiplier": 1.0, "weighting": "uniform"},
            "with privacy.unit",
        ),
    ],
)
def test_what_groups_cannot_do_is_refused_before_the_run(run: Runs, keys: dict[str, Value], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        run("refused", **{**GROUPED, **keys})
    assert not (run.folder / "refused" / "config.toml").exists()


def test_how_many_that_collude_meet_by_chance() -> None:
    """Of two clients among six both are in the first group of three with probability 4/20, in either with 2/5."""
    assert most_colluding(6, 2, 1 / 3, 0.41) == 1
    assert most_colluding(6, 2, 1 / 3, 0.39) == 2
    assert most_colluding(6, 1, 1 / 3, 0.01) == 2
    assert most_colluding(1000, 50, 0.0, 1e-9) == 0


def _rows(head: str) -> list[list[str]]:
    lines = (ROOT / "docs" / "robust.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head)) + 2
    found = itertools.takewhile(lambda line: line.startswith("|"), lines[start:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_the_pages_table_of_the_most_groups() -> None:
    """With one group more some group would be too small for those that may meet in it."""

    def possible(n: int, k: int, colluding: float) -> bool:
        chosen = settings(
            secure_aggregation=True, secure_groups=k, secure_group_size=3, secure_colluding=colluding,
            max_update_norm=1.0, aggregation="median",
        )  # fmt: skip
        try:
            check(chosen, n, "the cohort")
        except ConfigurationError:
            return False
        return True

    for γ, *most in _rows("| γ | n = 50"):
        for n, k in zip((50, 100, 300, 1000), map(int, most), strict=True):
            assert possible(n, k, float(γ)), (γ, n, k)
            assert not possible(n, k + 1, float(γ)), (γ, n, k)


def test_the_pages_table_of_errors() -> None:
    """Recomputed from its description; the draws are those of the table."""
    for k, _, *told in _rows("| k | clients of a group"):
        count = int(k.partition(":")[0])
        names = ("median", "geometric-median") if count > 1 else ("mean", "mean")
        found = [_error(name, count, bound) for name in names for bound in (10, 100)]
        np.testing.assert_allclose(found, [float(cell) for cell in told], atol=0.006)


def _error(name: str, k: int, bound: float) -> float:
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        μ = rng.normal(size=1000)
        μ /= np.linalg.norm(μ)
        updates = μ + rng.normal(0, 3 / np.sqrt(1000), size=(100, 1000))
        updates[:5] = -bound * μ
        means = np.array([updates[own].mean(axis=0) for own in np.array_split(rng.permutation(100), k)])
        rule = RULES[name](RULES[name].keys(), 5)
        combined = rule.combine(Stack({"w": means}, np.ones(k)), None).update["w"]  # type: ignore[arg-type]
        errors.append(float(np.linalg.norm(combined - μ)))
    return float(np.mean(errors))
