"""Networks that mix the examples of a batch are found, others are not, and DP-SGD trains none that does."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.dry_run import random_inputs
from florilegium.models.mixing import mixing
from florilegium.models.networks import build
from florilegium.privacy.dp_sgd import PrivateGradients
from tests.runs import Runs
from tests.support import config

SHAPE = (1, 8, 8)


def _network(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.Flatten(), nn.Linear(144, 10))


def _frozen(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        parameter.requires_grad_(requires_grad=False)
    return module


class Functional(nn.Module):
    """Batch norm as a function, without a layer that a validator would find."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, None, None, training=True)


class Centred(nn.Module):
    """Subtracts the mean of the batch, in training mode alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0) if self.training else x


class Follows(nn.Module):
    """Keeps a running mean that nothing uses yet."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean += 0.1 * (x.mean() - self.mean)
        return x


class Counts(nn.Module):
    """Counts batches, which tells nothing of examples."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x


class Eval(nn.BatchNorm2d):
    """Batch norm that stays in evaluation mode."""

    def train(self, mode: bool = True) -> nn.BatchNorm2d:
        return super().train(False)


MIXING = {
    "batch norm": nn.BatchNorm2d(4), "without parameters": nn.BatchNorm2d(4, affine=False),
    "without statistics": nn.BatchNorm2d(4, track_running_stats=False), "frozen": _frozen(nn.BatchNorm2d(4)),
    "bare": nn.BatchNorm2d(4, affine=False, track_running_stats=False), "function": Functional(), "centred": Centred(),
    "running mean": Follows(), "instance norm that keeps statistics": nn.InstanceNorm2d(4, track_running_stats=True),
}  # fmt: skip
HARMLESS = {
    "group norm": nn.GroupNorm(2, 4), "layer norm": nn.LayerNorm([4, 6, 6]), "instance norm": nn.InstanceNorm2d(4),
    "dropout": nn.Dropout(0.5), "counter": Counts(), "evaluation mode": Eval(4), "ReLU": nn.ReLU(),
}  # fmt: skip


@pytest.mark.parametrize("name", [*MIXING])
def test_what_mixes_is_found_and_left_as_it_was(name: str) -> None:
    network = _network(copy.deepcopy(MIXING[name]))
    before = {n: t.clone() for n, t in network.state_dict().items()}
    assert mixing(network, random_inputs(SHAPE, codes=0))
    assert network.training
    assert all(torch.equal(tensor, before[n]) for n, tensor in network.state_dict().items())


def test_a_last_layer_of_zeros_hides_nothing() -> None:
    network = _network(nn.BatchNorm2d(4, affine=False, track_running_stats=False))
    nn.init.zeros_(network[-1].weight)
    assert "depends on the others" in mixing(network, random_inputs(SHAPE, codes=0))


@pytest.mark.parametrize("name", [*HARMLESS])
def test_what_does_not_mix_is_let_through(name: str) -> None:
    assert mixing(_network(copy.deepcopy(HARMLESS[name])), random_inputs(SHAPE, codes=0)) == ""


@pytest.mark.parametrize(("model", "mixes"), [("lenet", False), ("mlp", False), ("linear", False), ("cnn-bn", True)])
def test_the_suites_networks(model: str, mixes: bool) -> None:
    network = build(model, (1, 16, 16), 10, 1)
    assert bool(mixing(network, random_inputs((1, 16, 16), codes=0))) is mixes


def test_codes_are_replaced_by_others() -> None:
    class Shared(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.mean(dim=0)

    x = random_inputs((5,), codes=VOCABULARY_SIZE)
    plain = nn.Sequential(nn.Embedding(200, 3), nn.Flatten(), nn.Linear(15, 4))
    assert mixing(plain, x) == ""
    assert "depends on the others" in mixing(nn.Sequential(plain[0], Shared(), *plain[1:]), x)


@pytest.mark.parametrize("name", ["batch norm", "without parameters", "frozen", "bare"])
@pytest.mark.parametrize("ghost", [False, True])
def test_dp_sgd_itself_trains_no_batch_norm(name: str, ghost: bool) -> None:
    with pytest.raises(RunError, match="layer '1' is batch norm"):
        PrivateGradients(_network(copy.deepcopy(MIXING[name])), 1.0, 1.0, 0.5, 10, ghost=ghost)


def test_a_run_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mixing_network.py").write_text(
        "from torch import nn\nfrom torch.nn import functional\n\n\n"
        "class Norm(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return functional.batch_norm(x, None, None, training=True)\n\n\n"
        "def make(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Norm(), nn.Linear(8, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = Runs(tmp_path, config(**{"privacy.unit": "example", "privacy.noise-multiplier": 1.0, "rounds": 1}))
    with pytest.raises(ConfigurationError, match="'example': its output for one example"):
        run("refused", model="mixing_network:make")
