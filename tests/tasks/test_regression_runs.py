"""Regression with methods that know nothing of it: pictures and numbers, one target and several, with every layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.engines.one_process import run_here
from florilegium.apps.runs.predictions import table_of_predictions
from florilegium.clients.core.export import load_model, save_model, spec_of
from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import Targets
from tests.support import CACHE, config, mostly_long, settings

KEYS: dict[str, Value] = {
    "dataset": "digits", "task": "regression", "partitioner": "iid", "num-clients": 4, "rounds": 3, "local-epochs": 2,
    "learning-rate": 0.005, "participation": 1.0, "evaluate-every": 1,
}  # fmt: skip
NEEDED = [
    "fedavg", "fedprox", "scaffold", "ditto", "fedper", "fedrep", "apfl", "pfedme", "local", "fedbabu", "lg-fedavg",
    "feddyn", "fednova",
]  # fmt: skip
"""Methods that are to learn any task, since they use nothing but its loss."""


def _run(folder: Path, **keys: Value) -> dict[str, Any]:
    """Carry out a run; return its summary."""
    run_here(config(**{**KEYS, **keys, "run-name": "run", "runs-dir": str(folder)}), folder / "run")
    found: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    return found


def _numbers(columns: int) -> str:
    """Return a dataset of linear targets of floats, with a test split."""
    rng = np.random.default_rng(1)
    w = rng.normal(size=(5, columns))
    parts = [(x := rng.normal(size=(n, 5)), x @ w + 0.1 * rng.normal(size=(n, columns))) for n in (240, 80)]
    return array_dataset(*parts, name=f"numbers{columns}", cache_dir=str(CACHE))


def test_methods_that_use_the_loss_alone_learn_any_task() -> None:
    assert {*NEEDED} <= {*fitting(make_task("regression", Targets(("y",))))}


@pytest.mark.parametrize("method", mostly_long(NEEDED, "fedavg", "ditto", "fedrep"))
def test_pictures(method: str, tmp_path: Path) -> None:
    """Better than always predicting the mean digit, whose RMSE is about 2.9."""
    own: dict[str, Value] = {"pfedme.personal-learning-rate": 0.005, "finetune-epochs": 1} if method == "pfedme" else {}
    figures = _run(tmp_path, method=method, rounds=8, **own)["final"]["seen"]
    assert figures["rmse_pooled"] < 2.7
    assert figures["loss"] >= figures["rmse"] ** 2  # the mean of squares is no less than the square of the mean


@pytest.mark.parametrize("method", mostly_long(NEEDED, "scaffold", "apfl"))
def test_several_numbers(method: str, tmp_path: Path) -> None:
    own: dict[str, Value] = {"rounds": 40, "finetune-epochs": 5} if method in ("pfedme", "fedbabu") else {}
    keys: dict[str, Value] = {"dataset": _numbers(3), "task": "", "learning-rate": 0.02, "rounds": 10, "model": "mlp"}
    summary = _run(tmp_path, **{**keys, "method": method, **own})
    assert summary["task"]["name"] == "rmse"
    assert summary["final"]["seen"]["r2_pooled"] > 0.6


@pytest.mark.parametrize(
    "keys",
    [
        {"validation-fraction": 0.25, "patience": 1, "rounds": 4},
        {"compression.scheme": "top-k"},
        {"secure-aggregation": True, "weighting": "uniform", "max-update-norm": 20.0},
        {"privacy.unit": "client", "weighting": "uniform", "privacy.noise-multiplier": 0.5},
        {"privacy.unit": "example", "privacy.noise-multiplier": 0.5, "momentum": 0.0},
        {"aggregation": "median"},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_layers(keys: dict[str, Value], tmp_path: Path) -> None:
    figures = _run(tmp_path, **keys)["final"]["seen"]
    assert np.isfinite(figures["rmse_pooled"])
    if "validation-fraction" in keys:
        assert {"validation_rmse", "validation_loss", "validation_r2"} <= figures.keys()


def test_clients_that_train_together_have_the_same_results(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone, together = (_run(tmp_path / str(n), vectorise=n)["final"]["seen"] for n in (1, 4))
    assert together == pytest.approx(alone, rel=1e-3)
    assert "vectorise:" not in caplog.text


def test_secure_sums_pool_to_the_same_figures(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"weighting": "uniform", "max-update-norm": 50.0}
    clear, secure = (_run(tmp_path / str(on), **keys, **{"secure-aggregation": on}) for on in (False, True))
    names = ("rmse_pooled", "mae_pooled", "r2_pooled", "std")
    found, expected = (summary["final"]["seen"] for summary in (secure, clear))
    assert {name: found[name] for name in names} == pytest.approx({name: expected[name] for name in names}, abs=2e-3)


def test_a_models_predictions_are_numbers(tmp_path: Path) -> None:
    keys = settings(dataset=_numbers(2), model="linear")
    spec = dataset_of(keys)
    network = network_for(spec, NetworkSettings(model="linear"), 1)
    save_model(tmp_path, network, "0", "run", keys)
    model, card = load_model(tmp_path)
    assert card.labels == []
    x = np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32)
    import torch

    table = table_of_predictions(model, Examples(torch.from_numpy(x), torch.zeros(len(x))), spec)
    assert [*table] == ["y0", "y1"]
    np.testing.assert_allclose(table.to_numpy(), network(torch.from_numpy(x)).detach().numpy(), rtol=1e-6)


def test_a_task_that_is_not_the_datasets_own_is_kept_with_the_model(tmp_path: Path) -> None:
    keys = settings(dataset="digits", task="regression", model="linear")
    save_model(tmp_path, network_for(dataset_of(keys), NetworkSettings(model="linear"), 1), "0", "run", keys)
    model, card = load_model(tmp_path)
    assert card.task == "regression"
    assert model[0] is not None
    assert sum(parameter.numel() for parameter in model.parameters()) == 65


def test_a_client_of_one_example_has_no_r2_and_does_not_fail(tmp_path: Path) -> None:
    """Of 80 test rows 60 clients have one or two each; R² of one is undefined, and that of all together is not."""
    found = _run(tmp_path, dataset=_numbers(2), rounds=1, **{"num-clients": 60})
    assert not (tmp_path / "run" / "failures.jsonl").exists()
    assert "failed" not in found
    assert np.isfinite(found["final"]["seen"]["r2_pooled"])


def test_targets_of_any_unit_are_learned_in_their_deviations(tmp_path: Path) -> None:
    """Targets near 10⁵: without scaling a step of 0.02 diverges or crawls; figures are in the targets' unit."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(320, 5))
    y = 1e5 + 1e4 * (x @ rng.normal(size=5) + 0.1 * rng.normal(size=320))
    path = array_dataset((x[:240], y[:240]), (x[240:], y[240:]), name="prices", cache_dir=str(CACHE))
    keys: dict[str, Value] = {"dataset": path, "task": "", "model": "linear", "learning-rate": 0.05, "rounds": 8}
    found = _run(tmp_path, **keys, **{"target-scale": "standard"})["final"]["seen"]
    assert found["r2_pooled"] > 0.95
    assert 900 < found["rmse_pooled"] < 3000  # the noise has 1,000
    spec = dataset_of(settings(**{"dataset": path, "model": "linear", "target-scale": "standard"}))
    assert spec.learned.choices.scales[0] == pytest.approx((y[:240].mean(), y[:240].std()), rel=1e-5)
    given = settings(**{"dataset": path, "model": "linear", "target-scale": "standard"})
    save_model(tmp_path / "model", network_for(spec, NetworkSettings(model="linear"), 1), "0", "run", given)
    model, card = load_model(tmp_path / "model")
    import torch

    zero = table_of_predictions(model, Examples(torch.zeros(1, 5), torch.zeros(1)), spec)["value"][0]
    bias = float(network_for(spec, NetworkSettings(model="linear"), 1)(torch.zeros(1, 5)).detach())
    assert zero == pytest.approx(y[:240].mean() + y[:240].std() * bias, rel=1e-5)
    assert spec_of(tmp_path / "model", card).learned.key == spec.learned.key
    with pytest.raises(ConfigurationError, match="target-scale: only numbers to predict have a scale"):
        assert dataset_of(settings(**{"dataset": "digits", "target-scale": "standard"})).learned
