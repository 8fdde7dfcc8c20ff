"""Boosted trees as runs: equal to pooled XGBoost with the same bins, whatever the clients; leaves of clients."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xgboost
from numpy.typing import NDArray
from safetensors.numpy import load_file

from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.export import load_model
from florilegium.clients.core.wire import Reply
from florilegium.clients.statistics.trees import tree_columns
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.statistics.boosting import (
    SPLITS,
    Candidates,
    Growing,
    Penalty,
    Rows,
    gradients,
    reached,
    turns,
)
from florilegium.models.statistics.tree_columns import Column, cuts_of
from florilegium.models.trees import MOST
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.liars import Devices
from tests.runs import Runs, vanishing
from tests.support import CACHE, settings

Array = NDArray[np.float64]
REAL = Path(os.environ.get("FLORILEGIUM_DATA", "/nowhere"))
KEYS: dict[str, Value] = {
    "method": "trees", "partitioner": "natural", "num-clients": 0, "rounds": 6, "evaluate-every": 0, "min-examples": 0,
    "trees.number": 6, "trees.depth": 4,
}  # fmt: skip
OBJECTIVES = {"regression": "reg:squarederror", "binary": "binary:logistic", "classification": "multi:softprob"}
needs_data = pytest.mark.skipif(not (REAL / "adult").is_dir(), reason="needs the files of $FLORILEGIUM_DATA")


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def _made(task: str, clients: int = 2, n: int = 900) -> str:
    """Return a dataset whose clients, of unequal size, have the same rows together whatever their number."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    x[:, 3], x[:, 4] = rng.integers(0, 4, n), rng.random(n) < 0.3
    score = x[:, 0] - x[:, 1] * x[:, 2] + 2 * (x[:, 3] == 2) + x[:, 4] + 0.5 * rng.normal(size=n)
    targets: dict[str, Any] = {"regression": score.astype(np.float32), "binary": (score > 0.5).astype(int)}
    y = targets.get(task, np.digitize(score, (0, 1)))
    owners = np.array([f"c{i}" for i in np.minimum(rng.geometric(0.5, n) - 1, clients - 1)])
    few = np.concatenate([np.flatnonzero(owners == owner)[:2] for owner in np.unique(owners)])
    return array_dataset((x, y, owners), (x[few], y[few], owners[few]), cache_dir=str(CACHE))


def _rows(keys: dict[str, Value]) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return inputs and targets of all clients' training rows."""
    federation, dataset = federate(settings(**keys))
    parts = [simulated(federation, dataset, client).train for client in range(len(federation))]
    return np.concatenate([p.x.numpy() for p in parts]), np.concatenate([p.y.numpy().reshape(-1) for p in parts])


def _binned(
    x: NDArray[np.float32], columns: list[Column], cuts: list[NDArray[np.float32]], y: Any, **more: Any
) -> xgboost.QuantileDMatrix:
    """Return rows for XGBoost with these cuts: it takes them from rows that have each value at which a bin begins."""
    values = np.full((max(map(len, cuts)) + 3, x.shape[1]), np.nan, np.float32)
    x = x.copy()
    for column, own in zip(columns, cuts, strict=True):
        gone = column.lacks(x)
        for place in column.places:
            first = np.float32(min(float(x[:, place].min()), float(own[0]) if len(own) else 0) - 1)
            begins = np.array([0, 1], np.float32) if column.categories else np.concatenate([[first], own])
            values[: len(begins), place] = begins
            x[gone, place] = np.nan
    for indicator in {one.missing for one in columns} - {-1}:
        x[:, indicator] = np.nan
    reference = xgboost.QuantileDMatrix(values, max_bin=1024)
    return xgboost.QuantileDMatrix(x, y, ref=reference, max_bin=1024, **more)


def _pooled(path: Path, keys: dict[str, Value], task: str, weights: Any = None, **more: Any) -> xgboost.Booster:
    """Return XGBoost's model of all rows in one place, with the run's bins and its margins without trees."""
    checkpoint = read_checkpoint(path)
    columns = tree_columns(load_dataset(settings(**keys)).spec)
    x, y = _rows(keys)
    bias = checkpoint.arrays["trees.bias"]
    margin = np.tile(bias, (len(x), 1)) if len(bias) > 1 else np.full(len(x), bias[0])
    data = _binned(x, columns, cuts_of(checkpoint.own["cuts"], columns), y, base_margin=margin, weight=weights)
    chosen = {"eta": 0.3, "reg_lambda": 1.0, "gamma": 0.0, "min_child_weight": 1.0, **more}
    classes = {"num_class": len(bias)} if task == "classification" else {}
    common = {"tree_method": "hist", "grow_policy": "depthwise", "max_depth": 4, "max_bin": 1024, "nthread": 1}
    return xgboost.train({"objective": OBJECTIVES[task], **common, **classes, **chosen}, data, 6)


def _trees(booster: xgboost.Booster) -> list[dict[str, list[Any]]]:
    model = json.loads(bytes(booster.save_raw("json")))
    found: list[dict[str, list[Any]]] = model["learner"]["gradient_booster"]["model"]["trees"]
    return found


def _nodes(tree: dict[str, list[Any]], at: int = 0, place: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the nodes of XGBoost's tree with their places in a complete one."""
    yield at, place
    if tree["left_children"][at] >= 0:
        yield from _nodes(tree, tree["left_children"][at], 2 * place + 1)
        yield from _nodes(tree, tree["right_children"][at], 2 * place + 2)


def _equal(path: Path, booster: xgboost.Booster, columns: list[Column], leaf: float = 1e-6) -> int:
    """Check that a run's trees have XGBoost's splits, defaults, and leaves up to rounding; return the splits."""
    arrays, splits = read_checkpoint(path).arrays, 0
    words = {place for one in columns if one.categories for place in one.places}
    inner = arrays["trees.feature"].shape[1]
    for number, tree in enumerate(_trees(booster)):
        own = {name: arrays[f"trees.{name}"][number] for name in ("feature", "threshold", "missing", "leaf")}
        for at, place in _nodes(tree):
            if tree["left_children"][at] < 0:
                while place < inner:
                    place = 2 * place + 1
                value = tree["split_conditions"][at]
                assert own["leaf"][place - inner] == pytest.approx(value, abs=leaf), (number, place)
                continue
            splits += 1
            assert own["feature"][place] == tree["split_indices"][at], (number, place)
            if own["feature"][place] not in words and own["threshold"][place] != np.float32(MOST):
                assert own["threshold"][place] == np.float32(tree["split_conditions"][at]), (number, place)
            assert own["missing"][place] == tree["default_left"][at], (number, place)
    return splits


@pytest.mark.parametrize("clients", [1, 2, 5])
@pytest.mark.parametrize("task", OBJECTIVES)
def test_trees_are_those_of_pooled_xgboost(run: Runs, task: str, clients: int) -> None:
    """To the split, with its default direction; leaves and outputs differ by rounding in single precision."""
    keys = {**KEYS, "dataset": _made(task, clients), "task": task}
    path = run("run", nodes=min(clients, 3), **keys)
    booster = _pooled(path, keys, task)
    dataset = load_dataset(settings(**keys))
    columns = tree_columns(dataset.spec)
    assert _equal(path, booster, columns) > 50
    model, _ = load_model(personalise(path, path / "model", "0"))
    x, y = _rows(keys)
    bias = read_checkpoint(path).arrays["trees.bias"]
    data = xgboost.DMatrix(x, base_margin=np.tile(bias, (len(x), 1)) if len(bias) > 1 else np.full(len(x), bias[0]))
    with torch.no_grad():
        outputs = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(outputs, booster.predict(data, output_margin=True).reshape(outputs.shape), atol=1e-5)
    share = np.bincount(y.astype(int)) / len(y) if task != "regression" else y
    expected = {"regression": y.mean(), "binary": np.log(share[1] / share[0])}.get(task, np.log(np.abs(share)))
    np.testing.assert_allclose(bias, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ({"boosting.gamma": 2.0, "boosting.eta": 0.1}, {"gamma": 2.0, "eta": 0.1}),
        ({"boosting.l2": 0.0, "boosting.min-child-weight": 12.0}, {"reg_lambda": 0.0, "min_child_weight": 12.0}),
        ({"boosting.reach": 2.5, "boosting.bins": 7}, {}),
        ({"boosting.bins": 200}, {}),
    ],
)
def test_keys_mean_what_they_mean_in_xgboost(run: Runs, own: dict[str, Value], theirs: dict[str, float]) -> None:
    keys = {**KEYS, "dataset": _made("binary"), "task": "binary", **own}
    path = run("run", **keys)
    columns = tree_columns(load_dataset(settings(**keys)).spec)
    assert _equal(path, _pooled(path, keys, "binary", **theirs), columns) > 10
    if "boosting.reach" in own:
        cuts = cuts_of(read_checkpoint(path).own["cuts"], columns)
        assert all(np.allclose(one, np.linspace(-2.5, 2.5, 8)[1:-1]) for one in cuts)


def _table(folder: Path) -> dict[str, Value]:
    """Write files of three clients with categories, missing values and weights; return the keys of a run on them."""
    import pandas as pd

    rng = np.random.default_rng(5)
    n = 900
    dose, kind, age = rng.normal(size=n), rng.choice(["a", "b", "c", "d"], n), rng.integers(20, 90, n).astype(float)
    lost, old = rng.random(n) < 0.25, rng.random(n) < 0.2
    score = dose + 2 * (kind == "c") + 2 * lost + 0.02 * (age - 50) - 2 * old + rng.normal(size=n) * 0.4
    table = pd.DataFrame({
        "dose": np.where(lost, np.nan, dose), "kind": kind, "age": np.where(old, np.nan, age),
        "w": rng.integers(1, 4, n),
    }).assign(label=(score > 1).astype(int))  # fmt: skip
    table.loc[rng.random(n) < 0.1, "kind"] = None
    owners = rng.integers(3, size=n)
    for owner in range(3):
        for part in ("train", "test"):
            (folder / f"c{owner}").mkdir(parents=True, exist_ok=True)
            table[owners == owner].to_csv(folder / f"c{owner}" / f"{part}.csv", index=False)
    return {
        "dataset": str(folder), "missing": "indicator", "weight-column": "w", "duplicates": "warn", "task": "binary",
    }  # fmt: skip


def test_categories_missing_values_and_weights(run: Runs, tmp_path: Path) -> None:
    """Rows that lack a value go where XGBoost sends them; a category is split from the others."""
    keys = {**KEYS, **_table(tmp_path / "own")}
    path = run("run", **keys)
    federation, dataset = federate(settings(**keys))
    columns = tree_columns(dataset.spec)
    assert {one.name: one.missing >= 0 for one in columns} == {"age": True, "dose": True, "kind": False}
    parts = [simulated(federation, dataset, client).train for client in range(len(federation))]
    weights = np.concatenate([np.asarray(part.weights) for part in parts])
    assert _equal(path, _pooled(path, keys, "binary", weights), columns) > 50
    arrays = read_checkpoint(path).arrays
    looked = arrays["trees.lacking"] >= 0
    assert {*arrays["trees.missing"][looked]} == {0.0, 1.0}
    gain = json.loads((path / "summary.json").read_text())["trees"]["gain"]
    assert {*gain} == {"kind", "dose", "age"}
    assert [*gain.values()] == sorted(gain.values(), reverse=True)
    assert sum(gain.values()) == pytest.approx(1)


@pytest.mark.parametrize("task", OBJECTIVES)
def test_an_exported_model_is_one_of_xgboost(run: Runs, task: str) -> None:
    """Its file gives XGBoost the predictions of the network."""
    keys = {**KEYS, "dataset": _made(task), "task": task, "rounds": 4}
    path = run("run", **keys)
    folder = personalise(path, path / "model", "0")
    x, _ = _rows(keys)
    booster = xgboost.Booster(model_file=str(folder / "xgboost.json"))
    model, _ = load_model(folder)
    with torch.no_grad():
        outputs = model(torch.from_numpy(x)).numpy()
    found = booster.predict(xgboost.DMatrix(x, feature_names=[f"x{i}" for i in range(5)]), output_margin=True)
    np.testing.assert_allclose(found.reshape(outputs.shape), outputs, atol=1e-5)
    assert booster.num_boosted_rounds() == 4
    assert len(booster.get_dump()) == 4 * (3 if task == "classification" else 1)


def test_an_exported_model_takes_rows_in_their_own_units(run: Runs, tmp_path: Path) -> None:
    """With NaN where a value lacks, and 0/1 columns of categories."""
    import pandas as pd

    keys = {**KEYS, **_table(tmp_path / "own")}
    path = run("run", **keys)
    folder = personalise(path, path / "model", "c0")
    booster = xgboost.Booster(model_file=str(folder / "xgboost.json"))
    table = pd.read_csv(tmp_path / "own" / "c0" / "train.csv")
    names = booster.feature_names or []
    columns = {name: table[name] if name in table else (table["kind"].fillna("") == name[5:]) for name in names[:-2]}
    rows = pd.DataFrame(columns).astype(np.float64).assign(**dict.fromkeys(names[-2:], np.nan))[names]
    assert rows.isna().any().sum() == 4
    found = booster.predict(xgboost.DMatrix(rows), output_margin=True)
    federation, dataset = federate(settings(**keys))
    model, _ = load_model(folder)
    with torch.no_grad():
        outputs = model(simulated(federation, dataset, 0).train.x).numpy()[:, 0]
    np.testing.assert_allclose(np.sort(found), np.sort(outputs), atol=1e-5)


def test_secure_sums_round_to_a_fixed_point(run: Runs) -> None:
    keys = {**KEYS, "dataset": _made("binary", 5), "task": "binary"}
    plain = read_checkpoint(run("plain", **keys)).arrays
    secure = read_checkpoint(run("secure", nodes=5, **keys, **{"secure-aggregation": True})).arrays
    for name in ("feature", "threshold", "missing", "lacking"):
        assert np.array_equal(plain[f"trees.{name}"], secure[f"trees.{name}"])
    np.testing.assert_allclose(secure["trees.leaf"], plain["trees.leaf"], atol=1e-6)


def test_a_run_that_is_resumed_and_packed_otherwise(run: Runs) -> None:
    run.check_resume_and_packing(dataset=_made("classification", 5), task="classification")


def test_a_round_goes_on_without_a_client_that_is_lost(run: Runs) -> None:
    """Each level's splits follow from the sums of those that reply to it."""
    keys = {**KEYS, "dataset": _made("binary", 5), "task": "binary", "min-success": 0.5}
    path = run("run", nodes=5, intercept=vanishing("1", 5), **keys)
    assert json.loads((path / "summary.json").read_text())["trees"]["rounds"] == 6
    failed = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert {one["client"] for one in failed} == {"1"}
    assert read_checkpoint(path).arrays["trees.leaf"][5].any()


def test_clients_that_join_later_catch_up(run: Runs) -> None:
    """Cohorts of some clients: one that was not asked before computes its margins from all trees."""
    keys = {**KEYS, "dataset": _made("regression", 5), "task": "regression", "cohort-size": 2}
    path = run("run", **keys)
    model, _ = load_model(personalise(path, path / "model", "0"))
    federation, dataset = federate(settings(**keys))
    rounds = set()
    for client in range(len(federation)):
        files = sorted((path / "clients" / str(client)).glob("margins-*.safetensors"))
        if not files:
            continue
        kept, part = load_file(files[-1]), simulated(federation, dataset, client).train
        rounds.add(int(kept["grown"]))
        early = copy.deepcopy(model)
        early[0].leaf[int(kept["grown"]) :] = 0
        with torch.no_grad():
            np.testing.assert_allclose(kept["margin"], early(part.x).numpy(), atol=1e-5)
    assert len(rounds) > 1  # some had not been asked in the last round


def _one_tree(columns: list[Column], cuts: list[NDArray[np.float32]], x: NDArray[np.float32], y: Array) -> Growing:
    """Return the first tree of a regression on rows with inputs x (n, d) and targets y (n,)."""
    rows = Rows.of("linear", x, y[:, None], np.ones(len(y), np.float32), columns, cuts)
    g, h = gradients("linear", np.zeros((len(y), 1), np.float32), rows.y, rows.weights)
    growing, candidates = Growing(1, 4, len(columns)), Candidates.of(columns, cuts)
    while growing.grows:
        column, left = turns({name: growing.arrays[name] for name in SPLITS}, columns, cuts)
        nodes = reached(rows.codes, column[0], left[0], growing.level)
        sums = rows.histogram(nodes, 2**growing.level, g[:, 0], h[:, 0])
        growing.add(sums[None], candidates, Penalty(1.0, 0.0, 1.0, 0.3))
    return growing


def test_categories_that_are_missing() -> None:
    """Their rows go to the side where the gain is larger, in XGBoost as here; unknown ones are in no category."""
    columns = [Column("dose", (0,), False, -1), Column("kind", (1, 2, 3, 4, 5), True, 6)]
    cuts = [np.linspace(-2, 2, 9).astype(np.float32), np.zeros(0, np.float32)]
    defaults = set()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        kind, lost = rng.integers(0, 5, 800), rng.random(800) < 0.25
        x = np.column_stack([rng.normal(size=800), np.eye(5)[kind] * (kind < 4)[:, None], lost]).astype(np.float32)
        y = x[:, 0] + rng.normal(size=5)[kind] * ~lost + 2 * (rng.random() - 0.5) * lost + 0.3 * rng.normal(size=800)
        grown = _one_tree(columns, cuts, x, y).arrays
        data = _binned(x, columns, cuts, y.astype(np.float32), base_margin=np.zeros(800))
        chosen = {"objective": "reg:squarederror", "max_depth": 4, "max_bin": 1024, "nthread": 1}
        (tree,) = _trees(xgboost.train(chosen, data, 1))
        for at, place in _nodes(tree):
            if tree["left_children"][at] >= 0:
                found = [int(grown[name][0, place]) for name in ("feature", "missing")]
                assert found == [tree["split_indices"][at], tree["default_left"][at]], place
                defaults.add(found[1])
    assert defaults == {0, 1}


def test_rounding_sends_nothing_to_the_left_by_default() -> None:
    """Without missing values a split counted from above is the one counted from below, up to the last bit."""
    rng = np.random.default_rng(0)
    columns = [Column(f"x{i}", (i,), False, -1) for i in range(3)]
    for _ in range(20):
        x = rng.normal(size=(500, 3)).astype(np.float32)
        grown = _one_tree(columns, [np.linspace(-2, 2, 31).astype(np.float32)] * 3, x, rng.normal(size=500))
        split = grown.arrays["threshold"][0] != np.float32(MOST)
        assert split.any()
        assert not grown.arrays["missing"][0][split].any()


class TestRefit:
    @pytest.mark.parametrize("task", OBJECTIVES)
    def test_with_all_rows_leaves_stay(self, run: Runs, task: str) -> None:
        path = run("run", dataset=_made(task, 1), task=task, **{"boosting.refit": 1.0})
        own = dict(load_file(next(personalise(path, path / "model", "0").glob("*.safetensors"))))
        common = read_checkpoint(path).arrays
        np.testing.assert_allclose(own["trees.leaf"], common["trees.leaf"], atol=2e-6)

    def test_leaves_are_those_of_xgboosts_refresh(self, run: Runs) -> None:
        """Its updater of leaves fits them to other rows in the order of the trees."""
        keys = {**KEYS, "dataset": _made("binary", 2), "task": "binary", "boosting.refit": 1.0}
        keys["boosting.min-child-weight"] = 0.0
        path = run("run", **keys)
        booster = _pooled(path, keys, "binary", min_child_weight=0.0)
        federation, dataset = federate(settings(**keys))
        part, bias = simulated(federation, dataset, 1).train, read_checkpoint(path).arrays["trees.bias"][0]
        data = xgboost.DMatrix(part.x.numpy(), part.y.numpy(), base_margin=np.full(len(part.y), bias))
        chosen = {
            "process_type": "update", "updater": "refresh", "refresh_leaf": True, "objective": "binary:logistic",
            "eta": 0.3, "min_child_weight": 0.0, "nthread": 1,
        }  # fmt: skip
        refreshed = xgboost.train(chosen, data, 6, xgb_model=booster)
        model, _ = load_model(personalise(path, path / "model", "c1"))
        with torch.no_grad():
            outputs = model(part.x).numpy()[:, 0]
        np.testing.assert_allclose(outputs, refreshed.predict(data, output_margin=True), atol=1e-5)

    def test_a_share_lies_between(self, run: Runs) -> None:
        """Of the first tree, whose rows have the same gradients whatever the share."""
        keys = {**KEYS, "dataset": _made("binary", 2), "task": "binary"}
        leaves = {}
        for share in (0.0, 0.25, 1.0):
            path = run(f"r{share}", **keys, **{"boosting.refit": share})
            file = next(personalise(path, path / "model", "c1").glob("*.safetensors"))
            leaves[share] = load_file(file)["trees.leaf"][0]
        between = 0.75 * leaves[0.0] + 0.25 * leaves[1.0]
        np.testing.assert_allclose(leaves[0.25], between, atol=1e-6)
        assert np.abs(leaves[1.0] - leaves[0.0]).max() > 0.01


class TestLies:
    @pytest.fixture
    def devices(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
        keys = {**KEYS, "dataset": "digits", "partitioner": "iid", "num-clients": 3, "rounds": 1, "min-success": 0.5}
        return Devices(tmp_path, keys | {"samples-per-client": 60, "trees.depth": 2}, monkeypatch)

    @pytest.mark.parametrize(("lie", "why"), [("negative", "below 0"), ("torn", "not of the same rows")])
    def test_histograms_that_cannot_be_are_not_used(self, devices: Devices, lie: str, why: str) -> None:
        def changed(reply: Reply, kind: str) -> Reply:
            if "histogram" in reply.arrays:
                sums = reply.arrays["histogram"]
                if lie == "negative":
                    sums[..., 1] *= -1
                else:
                    sums[..., 0, :] += 5
            return reply

        path = devices.lied("run", changed)
        reasons = [json.loads(line)["reason"] for line in (path / "failures.jsonl").read_text().splitlines()]
        assert any(why in reason for reason in reasons)


class TestMistakes:
    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"rounds": 7}, r"rounds: each grows a tree.*trees.number = 6 \(found: 7\)"),
            ({"boosting.l2": 0.0, "boosting.min-child-weight": 0.0}, "l2 and min-child-weight: one of them"),
            ({"boosting.bins": 1}, "bins"),
            ({"boosting.refit": 1.5}, "refit"),
            ({"trees.depth": 0}, "depth"),
            ({"method": "fedavg", "model": "trees"}, "trains a network, not 'trees'"),
            ({"model": "linear"}, "model: "),
            ({"task": "counts"}, "task: method 'trees' is for regression of one number"),
        ],
    )
    def test_are_found_before_a_run(self, run: Runs, keys: dict[str, Value], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            run("run", **{"dataset": _made("regression"), "task": "regression", **keys})

    def test_scales_of_clients(self, run: Runs, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="standardise: with 'client' a threshold would mean another"):
            run("run", **{**_table(tmp_path / "own"), "standardise": "client"})

    def test_another_runs_model(self, run: Runs) -> None:
        keys: dict[str, Value] = {"dataset": _made("regression"), "task": "regression"}
        run("first", **keys)
        with pytest.raises(ConfigurationError, match="init: method 'trees' grows its trees from the first on"):
            run("second", **keys, init=str(run.folder / "first"))


@needs_data
@pytest.mark.parametrize("name", ["adult", "fed-heart-raw"])
def test_real_tables(run: Runs, name: str) -> None:
    """Adult has categories and heavy tails, Heart Disease few rows in four hospitals."""
    keys = {**KEYS, "dataset": name, "task": "binary", **({"client-column": "workclass"} if name == "adult" else {})}
    path = run("run", **keys)
    columns = tree_columns(load_dataset(settings(**keys)).spec)
    assert _equal(path, _pooled(path, keys, "binary"), columns) > 50
    cuts = cuts_of(read_checkpoint(path).own["cuts"], columns)
    x, _ = _rows(keys)
    for column, own in zip(columns, cuts, strict=True):
        if not column.categories and len(np.unique(x[:, column.places[0]])) > 500:
            shares = np.diff([0, *np.searchsorted(np.sort(x[:, column.places[0]]), own), len(x)]) / len(x)
            assert shares.max() < 2.5 / 32
            assert all(a < b for a, b in pairwise(own))
