"""What FLowDUP's hypernetwork sees in clients: everybody's representation, and its agreement with their kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from apps.embed import Representations, agreement, representations, write_embedding
from apps.one_process import run_here
from apps.settings import parse
from clients.flowdup import make_hypernetwork
from common.errors import RunError
from common.settings import Value
from partitions.clientdata import simulated
from partitions.federation import federate
from strategies.run_folder import read_checkpoint
from tests.support import config

KEYS: dict[str, Value] = {
    "method": "flowdup", "model": "mlp", "num-clients": 12, "partitioner": "rotation", "unseen-fraction": 0.25,
    "participation": 1.0, "rounds": 2, "flowdup.dimensions": 20, "flowdup.features": 8, "flowdup.width": 8,
}  # fmt: skip


def test_every_client_is_represented_by_the_mean_of_its_features(tmp_path: Path) -> None:
    keys = config(**{**KEYS, "runs-dir": str(tmp_path), "run-name": "run"})
    run = run_here(keys, tmp_path / "run")
    found = representations(run)
    settings, hyper = parse(keys)
    federation, dataset = federate(settings)
    h = make_hypernetwork(hyper, "mlp", (1, 8, 8), 1)
    h.load_state_dict({n: torch.from_numpy(a) for n, a in read_checkpoint(run).arrays.items()})
    with torch.no_grad():
        expected = [h.inner(simulated(federation, dataset, i).train.x).mean(dim=0).numpy() for i in range(12)]
    np.testing.assert_allclose(found.r, expected, rtol=1e-4, atol=1e-5)
    assert found.kinds == [f"{angle:g}°" for angle in federation.angles]
    np.testing.assert_array_equal(found.unseen, federation.unseen)
    text = write_embedding(run, tmp_path / "report")
    assert "| 12 |" in text
    assert min(Image.open(tmp_path / "report" / "embedding.png").size) > 300


def test_clients_are_of_a_kind_whose_classes_are_the_same(tmp_path: Path) -> None:
    keys = config(**{**KEYS, "partitioner": "classes", "classes-per-client": 2, "runs-dir": str(tmp_path)})
    run = run_here({**keys, "run-name": "run", "rounds": 1}, tmp_path / "run")
    federation, dataset = federate(parse(keys)[0])
    held = [np.unique(simulated(federation, dataset, i).train.y) for i in range(12)]
    assert representations(run).kinds == [f"{classes[0]} {classes[1]}" for classes in held]


def test_agreement_is_one_for_clusters_of_the_same_kind() -> None:
    centers = np.repeat(10 * np.eye(3), 5, axis=0)
    r = centers + np.random.default_rng(1).normal(size=centers.shape)
    kinds = [str(kind) for kind in np.repeat(range(3), 5)]
    assert agreement(Representations(r, kinds, np.zeros(15, bool)), 1) == 1
    mixed = [str(kind) for kind in np.tile(range(3), 5)]
    assert agreement(Representations(r, mixed, np.zeros(15, bool)), 1) < 0.2


def test_other_methods_represent_nothing(tmp_path: Path) -> None:
    run = run_here(config(**{"rounds": 1, "num-clients": 4, "runs-dir": str(tmp_path)}), tmp_path / "fedavg")
    with pytest.raises(RunError, match="is one of method 'fedavg', which represents no inputs"):
        representations(run)
