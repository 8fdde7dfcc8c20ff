"""Transfer: what is frozen, what is new, what is resized, what is refused; recipes that end with it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression

from florilegium.apps.assembly.task_checks import fitting
from florilegium.apps.engines.progress import silent
from florilegium.apps.engines.ray_simulation import Simulation
from florilegium.apps.methods.layers import why_not
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.reports.pools import sections
from florilegium.apps.reports.run_records import load_run
from florilegium.apps.reports.tables import figures_table
from florilegium.apps.runs.experiment import run_experiment
from florilegium.apps.runs.transfer import check_target, transfer, transfer_once, write_transfers
from florilegium.apps.settings.configuration import TARGET, parse
from florilegium.clients.core.export import load_model, predict
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import set_arrays
from florilegium.partitions.clientdata import resize, to_inputs
from florilegium.partitions.sources.picture_folders import write_picture_folders
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.partitions.made import make
from tests.runs import Runs
from tests.support import CACHE, TASK, adapting, config, load, mostly_long

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "mlp", "num-clients": 6, "participation": 1.0, "rounds": 3, "learning-rate": 0.1,
    "evaluate-every": 0, "transfer-target": "digits", "transfer-epochs": 4, "transfer-learning-rate": 0.01,
    "transfer-batch-size": 64,
}  # fmt: skip


CLASSIFIERS = {name: METHODS[name] for name in fitting(TASK)}
TRANSFERABLE = [name for name, method in CLASSIFIERS.items() if not why_not(method, "transfers to other data")]


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    """Return what carries out runs in this process."""
    return Runs(tmp_path, KEYS)


def test_extractor_is_frozen_and_the_classifier_new(run: Runs, tmp_path: Path) -> None:
    path = run("run")
    result = transfer(path, {}, tmp_path / "out")
    before, after = read_checkpoint(path).arrays, load_file(tmp_path / "out" / "model.safetensors")
    last = list(before)[-1].partition(".")[0]
    for name, array in before.items():
        assert np.array_equal(after[name], array) == (not name.startswith(last))
    assert len(result.values) == 4
    assert result.values[-1] > 0.8  # of ten classes; the features are those of these very digits
    model, card = load_model(tmp_path / "out")
    assert card.client == TARGET
    assert json.loads((tmp_path / "out" / "transfer.json").read_text())["values"] == result.values
    assert isinstance(model, torch.nn.Module)


@pytest.mark.long
def test_whole_network_goes_on_training(run: Runs, tmp_path: Path) -> None:
    path = run("run")
    result = transfer(path, {"transfer-train": "whole"}, tmp_path / "out")
    before, after = read_checkpoint(path).arrays, load_file(tmp_path / "out" / "model.safetensors")
    assert all(not np.array_equal(after[name], array) for name, array in before.items())
    assert result.trained == "whole"


def test_classifier_is_as_good_as_logistic_regression(run: Runs, tmp_path: Path) -> None:
    """After many epochs the new classifier is near the best one for the features, scikit-learn's."""
    path = run("run")
    result = transfer(path, {"transfer-epochs": 60}, tmp_path / "out")
    dataset = load("digits", "", str(CACHE))
    assert dataset.test is not None
    network = build("mlp", (1, 8, 8), 10, 1)
    set_arrays(network, read_checkpoint(path).arrays)
    with torch.no_grad():
        train, test = (
            network[:-1](to_inputs(dataset.spec, np.asarray(split.x))).numpy()
            for split in (dataset.train, dataset.test)
        )
    best = LogisticRegression(C=1e3, max_iter=5000).fit(train, dataset.train.y).score(test, dataset.test.y)
    assert result.values[-1] == pytest.approx(best, abs=0.03)


@pytest.mark.long
def test_last_step_of_a_recipe_is_done_once(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run("run")
    transfer_once(path)
    summary = json.loads((path / "summary.json").read_text())
    assert summary["final"][TARGET]["accuracy"] > 0.5
    assert {"seen", TARGET} == summary["final"].keys()
    accuracy = f"{100 * summary['final'][TARGET]['accuracy']:.1f}"
    (section,) = sections([load_run(path)])
    assert [row[:5] for row in figures_table(section).rows if row[1] == "target"] == [
        ["fedavg", "target", "1", "3", accuracy]
    ]
    monkeypatch.setattr("florilegium.apps.runs.transfer.transfer", lambda *args: pytest.fail("it was done already"))
    transfer_once(path)


def test_no_target_no_transfer(run: Runs) -> None:
    path = run("run", **{"transfer-target": ""})
    transfer_once(path)
    assert TARGET not in json.loads((path / "summary.json").read_text())["final"]
    with pytest.raises(ConfigurationError, match="transfer-target"):
        transfer(path, {}, path / "out")
    with pytest.raises(ConfigurationError, match="method: run 'run' has it already"):
        transfer(path, {"method": "fedprox"}, path / "out")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"transfer-target": "cifar10"}, "3 channels"),
        ({"transfer-target": "shakespeare"}, "another kind"),
        ({"transfer-target": "adult"}, "another kind"),
        ({"transfer-target": "mnistm"}, "'mnistm' is not a dataset"),
        ({"model": "linear"}, "blocks"),
        ({"method": "mdm"}, "it trains none"),
        ({"method": "fedrep", "model": "lenet", "fedrep.head-blocks": 2}, "the last 2 blocks never reach the server"),
        *(
            ({"method": name}, f"method '{name}' has no common features: ")
            for name in CLASSIFIERS
            if name not in TRANSFERABLE
        ),
    ],
)
def test_transfer_that_cannot_be(keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"transfer-target: .*{said}"):
        check_target(*parse(config(**{**KEYS, **keys})))


@pytest.mark.parametrize("name", mostly_long(TRANSFERABLE, "fedavg", "fedsr", "ditto"))
def test_who_has_no_gap_has_an_extractor(name: str, run: Runs, tmp_path: Path) -> None:
    """Of every method that says so the run can be transferred."""
    path = run("run", method=name, rounds=1, **adapting(name, "fc1.1"), **{"min-success": 1.0})
    assert len(transfer(path, {"transfer-epochs": 1}, tmp_path / "out").values) == 1


def test_what_cannot_be_is_said_before_the_run(tmp_path: Path) -> None:
    simulation = Simulation(1)  # which is not started
    keys: dict[str, Value] = {**KEYS, "transfer-target": "cifar10", "runs-dir": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="3 channels"):
        run_experiment(simulation, keys, silent)
    assert not list(tmp_path.iterdir())


def test_pictures_of_another_size_and_of_ones_own(run: Runs, tmp_path: Path) -> None:
    """A target of the user's own, smaller than the source: resized here and by ``florilegium predict``."""
    rng = np.random.default_rng(1)
    for name, level in (("dark", 40), ("light", 200)):
        (tmp_path / "in" / "photo" / name).mkdir(parents=True)
        for i in range(10):
            pixels = np.clip(level + rng.integers(-30, 31, size=(24, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "in" / "photo" / name / f"{i}.png")
    write_picture_folders(tmp_path / "in", tmp_path / "own", 24)
    path = run("run", rounds=1, dataset="mnist_rgb", model="lenet", **{"data-dir": str(_digits_as_mnist(tmp_path))})
    target: dict[str, Value] = {"transfer-target": str(tmp_path / "own"), "data-dir": "", "transfer-epochs": 30}
    assert transfer(path, target, tmp_path / "out").values[-1] == 1.0
    model, card = load_model(tmp_path / "out")
    assert tuple(card.shape) == (3, 28, 28)
    dataset = load(str(tmp_path / "own"), "", str(CACHE))
    assert dataset.test is not None
    x = resize(to_inputs(dataset.spec, np.asarray(dataset.test.x)), card.shape)
    assert (predict(model, x, TASK).argmax(dim=1).numpy() == dataset.test.y).all()


def _digits_as_mnist(folder: Path) -> Path:
    """Write made rows in MNIST's schema."""
    (folder / "data" / "mnist").mkdir(parents=True)
    for part, seed in (("train", 0), ("test", 1)):
        pq.write_table(make("mnist", 60, seed=seed).table, folder / "data" / "mnist" / f"{part}.parquet")
    return folder / "data"


@pytest.mark.long
def test_methods_with_a_shared_body_transfer_too(run: Runs, tmp_path: Path) -> None:
    assert len(transfer(run("run", method="fedper"), {}, tmp_path / "out").values) == 4


@pytest.mark.long
def test_curves(run: Runs, tmp_path: Path) -> None:
    results = [transfer(run("run"), {}, tmp_path / "out")] * 2
    table = write_transfers(results, ["one", "two"], tmp_path / "report")
    assert f"| one | digits | classifier | 4 | {100 * results[0].values[-1]:.1f} |" in table
    assert (tmp_path / "report" / "transfer.png").stat().st_size > 1000
