"""Every task from data to predictions: runs with several methods and layers, exported models, ONNX, a device's data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.runs.predictions import add_onnx, table_of_predictions
from florilegium.clients.core.export import load_model, save_model, spec_of
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import Value
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.device_data import read_device
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.tasks.losses import IGNORED
from tests.support import CACHE, config, settings

RNG = np.random.default_rng(4)
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def _binary(n: int) -> Arrays:
    """One example in five is positive, which the first feature tells."""
    y = (RNG.random(n) < 0.2).astype(int) + 2 * (RNG.random(n) < 0.1).astype(int)
    return np.stack([(y > 0) + 0.4 * RNG.normal(size=n), RNG.normal(size=n)], axis=1), y


def _labels(n: int) -> Arrays:
    x = RNG.normal(size=(n, 3))
    return x, (x + 0.3 * RNG.normal(size=(n, 3)) > 0.5).astype(float)


def _times(n: int) -> Arrays:
    """Times fall with the first feature; a third is censored."""
    x = RNG.normal(size=(n, 3))
    times = RNG.exponential(np.exp(-1.5 * x[:, 0])) + 0.01
    censored = RNG.random(n) < 0.3
    return x, np.stack([times * np.where(censored, RNG.random(n), 1) + 0.001, ~censored], axis=1).astype(float)


def _sequences(n: int) -> Arrays:
    """The label of a position is the parity of its token; the first position does not count."""
    x = RNG.integers(0, 12, size=(n, 9))
    y = x % 2
    y[:, 0] = IGNORED
    return x, y


def _tokens(n: int) -> Arrays:
    """Each token is the one before plus 1, modulo 7."""
    return (RNG.integers(0, 7, size=(n, 1)) + np.arange(8)) % 7, RNG.integers(0, 2, size=n)


def _pictures(n: int) -> Arrays:
    """Bright pixels are of class 1."""
    x = RNG.integers(0, 256, size=(n, 8, 8, 1)).astype(np.uint8)
    return x, (x[..., 0] > 127).astype(int)


CASES: dict[str, tuple[Callable[[int], Arrays], dict[str, Value], str, float]] = {
    "binary": (
        _binary, {"positive": "1,2,3", "model": "linear", "metrics": "auroc,f1,accuracy", "learning-rate": 1.0},
        "f1_pooled", 0.7,
    ),
    "multi-label": (_labels, {"model": "linear", "learning-rate": 1.0}, "f1_pooled", 0.7),
    "survival": (_times, {"model": "linear", "learning-rate": 0.05}, "c-index", 0.7),
    "sequence-labels": (
        _sequences, {"model": "char-lstm-steps", "optimizer": "adam", "learning-rate": 0.01}, "accuracy_weighted", 0.9
    ),
    "next-token": (
        _tokens, {"model": "char-lstm-steps", "optimizer": "adam", "learning-rate": 0.01}, "accuracy_weighted", 0.9
    ),
    "segmentation": (_pictures, {"model": "fcn", "optimizer": "adam", "learning-rate": 0.01}, "dice_pooled", 0.9),
}  # fmt: skip
"""By task: training data, keys, the figure that must be reached, and its value."""
KEYS: dict[str, Value] = {
    "partitioner": "iid", "num-clients": 3, "rounds": 3, "local-epochs": 3, "learning-rate": 0.1, "participation": 1.0,
    "evaluate-every": 3, "batch-size": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def paths() -> dict[str, str]:
    return {
        task: array_dataset(make(240), make(90), name=task, cache_dir=str(CACHE)) for task, (make, *_) in CASES.items()
    }


def _run(folder: Path, task: str, path: str, **keys: Value) -> dict[str, Any]:
    """Carry out a run; return its summary."""
    run = folder / "-".join(map(str, keys.values())).replace(",", ".") if keys else folder / "run"
    given = {
        **KEYS,
        "task": task,
        "dataset": path,
        **CASES[task][1],
        **keys,
        "run-name": run.name,
        "runs-dir": str(folder),
    }
    run_here(config(**given), run)
    assert not (run / "failures.jsonl").exists(), (run / "failures.jsonl").read_text("utf-8")
    found: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("task", CASES)
def test_a_task_is_learned_by_methods_that_know_nothing_of_it(task: str, paths: dict[str, str], tmp_path: Path) -> None:
    _, _, figure, least = CASES[task]
    for method in ("fedavg", "ditto"):
        found = _run(tmp_path, task, paths[task], method=method)["final"]["seen"]
        assert found[figure] > least


@pytest.mark.parametrize("task", CASES)
def test_clients_that_train_together_have_the_same_figures(task: str, paths: dict[str, str], tmp_path: Path) -> None:
    alone, together = (_run(tmp_path, task, paths[task], rounds=1, vectorise=n)["final"]["seen"] for n in (1, 3))
    assert together == pytest.approx(alone, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("task", CASES)
def test_secure_sums_and_private_clients(task: str, paths: dict[str, str], tmp_path: Path) -> None:
    keys: dict[str, Value] = {"rounds": 1, "weighting": "uniform", "max-update-norm": 50.0}
    clear, secure = (
        _run(tmp_path, task, paths[task], **keys, **{"secure-aggregation": on})["final"]["seen"] for on in (False, True)
    )
    shared = clear.keys() & secure.keys() - {"loss"}
    assert CASES[task][2] in shared
    assert {n: secure[n] for n in shared} == pytest.approx({n: clear[n] for n in shared}, abs=0.02)
    keys = {"privacy.unit": "client", "privacy.noise-multiplier": 0.5, "weighting": "uniform", "rounds": 1}
    assert np.isfinite(_run(tmp_path, task, paths[task], **keys)["final"]["seen"][CASES[task][2]])


def test_private_examples_need_losses_of_examples(paths: dict[str, str], tmp_path: Path) -> None:
    keys: dict[str, Value] = {"privacy.unit": "example", "privacy.noise-multiplier": 0.5, "momentum": 0.0, "rounds": 1}
    assert np.isfinite(_run(tmp_path, "binary", paths["binary"], **keys)["final"]["seen"]["f1_pooled"])
    with pytest.raises(ConfigurationError, match="'example' needs a loss of each example"):
        _run(tmp_path, "survival", paths["survival"], **keys)


@pytest.mark.parametrize("task", CASES)
def test_a_model_is_exported_with_its_task(task: str, paths: dict[str, str], tmp_path: Path) -> None:
    """Files, ONNX and a device's data have the task's columns and shapes."""
    make, own, _, _ = CASES[task]
    keys = settings(dataset=paths[task], task=task, **own)
    spec = dataset_of(keys)
    network = network_for(spec, keys, 1)
    save_model(tmp_path, network, "0", "run", keys)
    model, card = load_model(tmp_path)
    assert spec_of(tmp_path, card).learned.key == spec.learned.key
    x, y = make(5)
    data = read_device("tests.tasks.test_every_task:" + _device(x, y), spec)
    assert tuple(data.train.y.shape) == (5, *spec.learned.shape)
    outputs = model(data.train.x)
    assert tuple(outputs.shape) == (5, *spec.learned.outputs)
    table = table_of_predictions(model, data.train, spec)
    assert len(table) == 5
    expected = {
        "binary": ["class", "probability"], "multi-label": ["y0", "y1", "y2"], "survival": ["risk"],
    }.get(task, ["classes"])  # fmt: skip
    assert [*table] == expected
    add_onnx(tmp_path)
    found = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"x": data.train.x.contiguous().numpy()})[0]
    np.testing.assert_allclose(found, spec.learned.activate(outputs).detach(), rtol=1e-4, atol=1e-5)


_HELD: dict[str, Arrays] = {}


def _device(x: Any, y: Any) -> str:
    _HELD["rows"] = x, y
    return "rows"


def rows() -> Any:
    """Yield a device's training rows."""
    yield _HELD["rows"]
    yield _HELD["rows"]


def test_a_network_without_outputs_for_positions_is_refused(paths: dict[str, str]) -> None:
    for task, model in (("segmentation", "cnn"), ("binary", "fcn"), ("next-token", "char-lstm")):
        with pytest.raises(ConfigurationError, match="model: "):
            network_for(
                dataset_of(settings(dataset=paths[task], task=task, **CASES[task][1])), NetworkSettings(model=model), 1
            )


def test_classes_of_positions_that_do_not_fit() -> None:
    x, y = _sequences(10)
    with pytest.raises(DataError, match=r"y holds -3 in row 0; classes of positions are 0, 1"):
        array_dataset((x, np.where(y == IGNORED, -3, y)), cache_dir=str(CACHE))
    with pytest.raises(DataError, match="which no training row has"):
        array_dataset((x, y), (x, np.abs(y)), cache_dir=str(CACHE))


def test_times_and_events_that_do_not_fit(tmp_path: Path) -> None:
    x, y = _times(30)
    for column, value, said in ((0, 0.0, "times above 0"), (1, 2.0, "events of 0 or 1")):
        wrong = y.copy()
        wrong[3, column] = value
        path = array_dataset((x, wrong), name="times", cache_dir=str(CACHE))
        with pytest.raises(DataError, match=said):
            _run(tmp_path, "survival", path)


def test_no_event_at_all_is_refused_and_none_of_a_client_is_not(tmp_path: Path) -> None:
    x, y = _times(60)
    y[:, 1] = 0
    path = array_dataset((x, y), name="times", cache_dir=str(CACHE))
    with pytest.raises(DataError, match=r"survival needs events, and column .* is 0 in all training rows"):
        _run(tmp_path, "survival", path)
    y[::3, 1] = 1  # those of the first of three clients
    names = np.array(["a", "b", "c"])[np.arange(60) % 3]
    path = array_dataset((x, y, names), name="times", cache_dir=str(CACHE))
    found = _run(tmp_path, "survival", path, partitioner="natural", **{"num-clients": 0})
    assert found["undefined"] == {"seen": {"c-index": ["b", "c"]}}
    assert 0 <= found["final"]["seen"]["c-index"] <= 1


def test_positive_examples_of_one_client_only(tmp_path: Path) -> None:
    """The others' area under the curve is undefined, and named; their accuracies count."""
    x, y = _binary(90)
    names = np.array(["a", "b", "c"])[np.arange(90) % 3]
    y = np.where(names == "a", np.arange(90) % 2, 0)
    path = array_dataset((x, y, names), name="one", cache_dir=str(CACHE))
    keys: dict[str, Value] = {"positive": "1", "metrics": "auroc,accuracy", "partitioner": "natural", "num-clients": 0}
    found = _run(tmp_path, "binary", path, **keys)
    assert found["undefined"] == {"seen": {"auroc": ["b", "c"]}}
    assert found["final"]["seen"]["accuracy"] > 0.3


def test_secure_sums_count_clients_without_a_figure(tmp_path: Path) -> None:
    x, y = _times(150)
    clients = np.repeat(["a", "b", "c"], 50)
    y[clients == "b", 1] = 0
    path = array_dataset((x, y, clients), (x, y, clients), name="regions", cache_dir=str(CACHE))
    keys: dict[str, Value] = {"partitioner": "natural", "num-clients": 0, "secure-aggregation": True, "rounds": 1}
    found = _run(tmp_path, "survival", path, **keys, **{"weighting": "uniform", "max-update-norm": 50.0})
    assert found["undefined"] == {"seen": {"c-index": 1}}
    assert any("c-index of seen clients leaves out 1, which have none" in warning for warning in found["warnings"])


def test_clients_without_a_comparable_pair_are_named(tmp_path: Path) -> None:
    """Client "b" has no event, so that no pair is comparable: its C-index is undefined, and it does not fail."""
    x, y = _times(120)
    clients = np.where(np.arange(120) < 80, "a", "b")
    y[clients == "b", 1] = 0
    path = array_dataset((x, y, clients), (x, y, clients), name="regions", cache_dir=str(CACHE))
    keys: dict[str, Value] = {"partitioner": "natural", "num-clients": 0}
    found = _run(tmp_path, "survival", path, **keys)
    assert found["undefined"] == {"seen": {"c-index": ["b"]}}
    assert "c-index of seen clients leaves out 1, for which it is undefined: b" in found["warnings"]
    assert found["final"]["seen"]["c-index"] == pytest.approx(found["final"]["seen"]["c-index_pooled"])
