"""What FedL2P gives each client: the figures of every client, and how near clients of a domain lie in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilegium.apps.engines.one_process import run_here
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.partitions.sources.picture_folders import write_picture_folders
from florilegium.research.studies.hyperparameters import (
    Found,
    agreement,
    cluster_distances,
    hyperparameters,
    write_hyperparameters,
)
from florilegium.strategies.fedl2p import BEST
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.support import config

KEYS: dict[str, Value] = {
    "method": "fedl2p", "model": "cnn-bn", "num-clients": 6, "participation": 1.0, "rounds": 3, "local-epochs": 1,
    "learning-rate": 0.02, "batch-size": 32, "validation-fraction": 0.2, "finetune-epochs": 1, "evaluate-every": 0,
    "fedl2p.pretraining-rounds": 1,
}  # fmt: skip


def _run(folder: Path, **keys: Value) -> Path:
    return run_here(config(**{**KEYS, "runs-dir": str(folder), "run-name": "run", **keys}), folder / "run")


def _output(arrays: dict[str, np.ndarray], net: str, inputs: np.ndarray) -> np.ndarray:
    """Return what a meta-net of a checkpoint makes of inputs (n, …), written out."""
    weights = [arrays[f"{BEST}{net}.{layer}.{kind}"] for layer in (0, 2) for kind in ("weight", "bias")]
    return np.maximum(inputs @ weights[0].T + weights[1], 0) @ weights[2].T + weights[3]


@pytest.mark.long
def test_every_client_has_what_the_best_meta_nets_make_of_its_statistics(tmp_path: Path) -> None:
    run = _run(tmp_path)
    found, arrays = hyperparameters(run), read_checkpoint(run).state
    assert found.norms == ["conv1.1", "conv2.1", "conv3.1"]
    assert {symbol: values.shape for symbol, values in found.values.items()} == {
        "ξ": (6, 3), "β": (6, 3), "x": (6, 14), "η": (6, len(found.tensors)),
    }  # fmt: skip
    β = np.clip(_output(arrays, "bn", found.values["ξ"]), 0, 1)
    np.testing.assert_allclose(found.values["β"], β, rtol=1e-4, atol=1e-6)
    η = np.clip(_output(arrays, "lr", found.values["x"]), 0, 1000) * arrays[BEST + "multipliers"]
    np.testing.assert_allclose(found.values["η"], η, rtol=1e-4, atol=1e-7)
    assert found.sizes.sum() == sum(p.numel() for p in build("cnn-bn", (1, 8, 8), 10, 1).parameters())
    text = write_hyperparameters(run, tmp_path / "report")
    assert text.splitlines()[-1].startswith(f"| 6 | {found.values['β'].mean():.3f} |")
    assert min(Image.open(tmp_path / "report" / "layers.png").size) > 300
    assert not (tmp_path / "report" / "domains.png").exists()


@pytest.fixture
def painted(tmp_path: Path) -> Path:
    """Return a dataset of grey and of bright pictures, two domains with two classes each."""
    rng, source = np.random.default_rng(1), tmp_path / "pictures"
    for domain, level in (("dark", 40), ("light", 200)):
        for number, name in enumerate(("flat", "striped")):
            (source / domain / name).mkdir(parents=True)
            for i in range(30):
                pixels = level + rng.integers(0, 30, size=(16, 16, 3))
                pixels[::2] += 20 * number
                Image.fromarray(pixels.astype(np.uint8)).save(source / domain / name / f"{i}.png")
    write_picture_folders(source, tmp_path / "dataset", 16)
    return tmp_path / "dataset"


@pytest.mark.long
def test_domains_are_told_apart(tmp_path: Path, painted: Path) -> None:
    keys: dict[str, Value] = {"dataset": str(painted), "partitioner": "iid", "domain-column": "domain"}
    run = _run(tmp_path, **keys)
    found = hyperparameters(run)
    assert found.domains.tolist() == ["dark"] * 3 + ["light"] * 3
    brightness = found.values["x"][:, 0]  # the mean of the first layer's inputs
    assert brightness[:3].max() < brightness[3:].min()
    lines = write_hyperparameters(run, tmp_path / "report").splitlines()
    assert lines[-3] == "| ξ | β | x | η |"
    assert lines[-1].split(" | ")[2] == "1.00"  # dark and light are apart in x
    assert min(Image.open(tmp_path / "report" / "domains.png").size) > 300


def test_domains_of_one_client_say_nothing(tmp_path: Path, painted: Path) -> None:
    keys: dict[str, Value] = {"dataset": str(painted), "partitioner": "iid", "domain-column": "domain"}
    text = write_hyperparameters(_run(tmp_path, **keys, **{"num-clients": 2}), tmp_path / "report")
    assert "Rand" not in text
    assert not (tmp_path / "report" / "domains.png").exists()


def test_a_network_without_batch_norm_has_rates_alone(tmp_path: Path) -> None:
    run = _run(tmp_path, model="mlp")
    assert list(hyperparameters(run).values) == ["x", "η"]
    assert "| 6 | – |" in write_hyperparameters(run, tmp_path / "report")


@pytest.mark.long
def test_in_l2p_every_client_has_its_own(tmp_path: Path) -> None:
    run = _run(tmp_path, method="l2p", **{"fedl2p.multiplier-learning-rate": 0.01})
    rates = hyperparameters(run).values["η"]
    assert len(np.unique(rates[:, 0])) == 6


def test_other_methods_make_none(tmp_path: Path) -> None:
    run = run_here(config(**{"rounds": 1, "num-clients": 4, "runs-dir": str(tmp_path)}), tmp_path / "fedavg")
    with pytest.raises(RunError, match="is one of method 'fedavg'; 'fedl2p' and 'l2p' make hyper-parameters"):
        hyperparameters(run)


def test_sparsity_counts_parameters_not_tensors() -> None:
    rates = np.array([[0.0, 0.1], [0.0, 0.0], [0.2, 0.1]])
    found = Found({"η": rates}, [], ["weight", "bias"], np.array([90, 10]), np.array([""] * 3))
    np.testing.assert_allclose(found.sparsity, [0.9, 1.0, 0.0])


def test_distances_between_domains_are_relative_to_those_within() -> None:
    values = np.array([[0.0], [1.0], [10.0], [11.0]])
    domains = np.array(["a", "a", "b", "b"])
    # Within: 1 and 1; between: the mean of 10, 11, 9 and 10.
    np.testing.assert_allclose(cluster_distances(values, domains), [[0, np.log(10)], [np.log(10), 0]], atol=1e-12)
    values[1] = 0.0
    distances = cluster_distances(values, domains)
    assert np.isnan(distances[0]).all()  # all of "a" are the same
    assert distances[1, 1] == 0


def test_agreement_is_one_where_domains_lie_apart() -> None:
    generator = np.random.default_rng(1)
    domains = np.repeat(["a", "b", "c"], 8)
    apart = np.repeat(1e-3 * np.eye(3), 8, axis=0) + 1e-4 * generator.normal(size=(24, 3))  # the scale is of no matter
    assert agreement(apart, domains, 1) == 1
    assert abs(agreement(generator.normal(size=(24, 3)), domains, 1)) < 0.3
    assert np.isnan(agreement(np.ones((24, 3)), domains, 1))
