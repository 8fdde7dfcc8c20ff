"""Reconstruction from updates: exact where the first layer is dense, blind under noise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.research.attacks import gradient
from florilegium.research.attacks.gradient import (
    attack,
    first_dense,
    from_dense,
    invert,
    label_from,
    protected,
    psnr,
    update_of,
)
from tests.runs import Runs
from tests.support import settings

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "mlp", "num-clients": 4, "rounds": 1, "local-epochs": 1, "evaluate-every": 0,
}  # fmt: skip
SHAPE = (1, 8, 8)


@pytest.fixture
def image() -> torch.Tensor:
    return torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_the_update_of_one_image_is_the_image(image: torch.Tensor, model: str) -> None:
    """One step of the real client, with momentum and several epochs in the run's own keys."""
    network = build(model, SHAPE, 10, 1)
    keys = settings(**{**KEYS, "momentum": 0.9, "weight-decay": 0.1, "local-epochs": 3, "learning-rate": 0.05})
    update = update_of(network, image, torch.tensor([7]), keys)
    network.zero_grad()
    cross_entropy(network(image), torch.tensor([7])).backward()
    for name, parameter in network.named_parameters():
        np.testing.assert_allclose(update[name], -0.05 * parameter.grad, atol=1e-6)
    assert label_from(update).tolist() == [7]
    layer = first_dense(network, SHAPE)
    np.testing.assert_allclose(from_dense(update, layer, SHAPE), image, atol=1e-4)
    clipped = protected(update, 1e-3, 0.0)
    assert math.sqrt(sum(float((a**2).sum()) for a in clipped.values())) == pytest.approx(1e-3)
    np.testing.assert_allclose(from_dense(clipped, layer, SHAPE), image, atol=1e-4)  # clipping hides nothing


def test_which_dense_layer_sees_the_image() -> None:
    assert first_dense(build("mlp", SHAPE, 10, 1), SHAPE) == "fc1.1"
    assert first_dense(build("cnn-bn", SHAPE, 10, 1), SHAPE) == ""
    assert first_dense(nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=False)), SHAPE) == ""


def test_the_noise_is_what_a_device_adds() -> None:
    noisy = protected({"a": np.zeros(40_000)}, 2.0, 0.25)
    assert noisy["a"].std() == pytest.approx(0.5, rel=0.02)


def test_psnr_of_a_known_error() -> None:
    true = torch.zeros(2, 1, 2, 2)
    found = torch.stack([torch.full((1, 2, 2), 0.1), torch.full((1, 2, 2), 1.0)])
    assert psnr(true, found, 2.0) == pytest.approx((26.0206 + 6.0206) / 2, abs=1e-3)


def test_an_image_is_found_by_its_gradient_and_not_under_noise(
    image: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient, "STEPS", 30)
    network, low, high = build("mlp", SHAPE, 10, 1), torch.tensor(0.0), torch.tensor(1.0)
    update = update_of(network, image, torch.tensor([2]), settings(**KEYS))

    def cosine(multiplier: float | None) -> float:
        generator = torch.Generator().manual_seed(1)
        found = invert(network, protected(update, 1.0, multiplier), low, high, SHAPE, generator)
        assert low <= found.min() <= found.max() <= high
        mean = image.mean()
        return float(cosine_similarity((found - mean).flatten(), (image - mean).flatten(), dim=0))

    assert cosine(None) > 0.9
    assert cosine(1.0) < 0.5


@pytest.mark.long
def test_a_finished_run_is_attacked(tmp_path: Path) -> None:
    path = Runs(tmp_path, KEYS)("run")
    found = attack(path)
    assert found.dense is not None
    plain, loud = gradient.MULTIPLIERS.index(None), gradient.MULTIPLIERS.index(1.0)
    span = found.high - found.low
    assert psnr(found.true, found.dense[plain], span) > 60
    assert psnr(found.true, found.searched[plain], span) > 15
    assert psnr(found.true, found.dense[loud], span) < 15
    assert (path / "audit-gradient.md").read_text() == found.table()
    assert (path / "audit-gradient.png").stat().st_size > 1000


@pytest.mark.long
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "fedper"}, "do not share the whole network"),
    ],
)
def test_what_cannot_be_attacked(tmp_path: Path, keys: dict[str, Value], message: str) -> None:
    path = Runs(tmp_path, {**KEYS, **keys})("run")
    with pytest.raises(RunError, match=message):
        attack(path)
