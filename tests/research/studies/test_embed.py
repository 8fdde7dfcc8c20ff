"""What FLowDUP's hypernetwork sees in clients: everybody's representation, and its agreement with their kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.settings.configuration import parse
from florilegium.clients.flowdup import make_hypernetwork
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.research.studies.embed import Representations, agreement, picture, representations, write_embedding
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.support import config

KEYS: dict[str, Value] = {
    "method": "flowdup", "model": "mlp", "num-clients": 12, "partitioner": "rotation", "unseen-fraction": 0.25,
    "participation": 1.0, "rounds": 2, "flowdup.dimensions": 20, "flowdup.features": 8, "flowdup.width": 8,
}  # fmt: skip


@pytest.mark.long
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
    kinds = [len(set(np.array(found.kinds)[chosen])) for chosen in (slice(None), found.unseen)]
    assert [line.split("|")[1:4] for line in text.splitlines()[2:]] == [
        [" all ", " 12 ", f" {kinds[0]} "], [" unseen ", " 3 ", f" {kinds[1]} "],
    ]  # fmt: skip
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
    assert agreement(r, [str(kind) for kind in np.repeat(range(3), 5)], 1) == 1
    assert agreement(r, [str(kind) for kind in np.tile(range(3), 5)], 1) < 0.2


def test_clients_of_a_kind_each_agree_with_nothing() -> None:
    r, kinds = np.random.default_rng(1).normal(size=(30, 4)), [str(kind) for kind in range(30)]
    assert np.isnan(agreement(r, kinds, 1))
    assert not picture(Representations(r, kinds, np.zeros(30, bool)), 1).legends[0].get_texts()


def test_angles_are_named_in_their_order() -> None:
    r, kinds = np.random.default_rng(1).normal(size=(40, 4)), ["180°", "0°", "270°", "90°"] * 10
    legend = picture(Representations(r, kinds, np.zeros(40, bool)), 1).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["0°", "90°", "180°", "270°"]


def test_many_kinds_can_be_told_apart() -> None:
    r, kinds = np.random.default_rng(1).normal(size=(90, 4)), [f"{kind:02}" for kind in np.tile(range(45), 2)]
    drawn = picture(Representations(r, kinds, np.arange(90) < 9), 1)
    styles = {(str(h.get_color()), h.get_marker()) for h in drawn.legends[0].legend_handles}
    assert len(styles) == 45
    edges = np.concatenate([points.get_edgecolors() for points in drawn.axes[0].collections])
    assert int((edges[:, 3] > 0).sum()) == 9


@pytest.mark.long
@pytest.mark.parametrize(("key", "value"), [("num-clients", 2), ("flowdup.features", 2)])
def test_two_of_a_thing_are_no_picture(key: str, value: int, tmp_path: Path) -> None:
    keys = {**KEYS, "unseen-fraction": 0.0, "rounds": 1, "runs-dir": str(tmp_path), "run-name": "run", key: value}
    run = run_here(config(**keys), tmp_path / "run")
    with pytest.raises(RunError, match="a picture needs 3 of both"):
        write_embedding(run, tmp_path / "report")


@pytest.mark.parametrize("method", ["fedavg", "pefll"])
def test_other_methods_represent_nothing(method: str, tmp_path: Path) -> None:
    keys = config(**{"method": method, "rounds": 1, "num-clients": 4, "runs-dir": str(tmp_path)})
    run = run_here(keys, tmp_path / method)
    with pytest.raises(RunError, match=f"is one of method '{method}', which represents no inputs"):
        representations(run)
