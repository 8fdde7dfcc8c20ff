"""Second derivatives: against torch's own and against finite differences; what is left to torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from florilegium.models.networks import build
from florilegium.models.second_derivatives import CheapSecondDerivatives


def _numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _twice(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the gradient of the gradient's squared length, in parameters and input."""
    y = torch.arange(len(x)) % 3
    everything = [*network.parameters(), x]
    first = torch.autograd.grad(functional.cross_entropy(network(x), y), everything, create_graph=True)
    return list(torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), everything))


@pytest.mark.parametrize("name", ["lenet", "resnet20", "mlp"])
def test_networks_have_torchs_second_derivatives(name: str) -> None:
    network = build(name, (3, 16, 16), 3, 1).double()
    x = _numbers(3, 3, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    expected = _twice(network, x)
    with CheapSecondDerivatives():
        found = _twice(network, x)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2}, {"padding": 2}, {"dilation": 2}, {"groups": 2}, {"bias": False}, {"padding": "same"}],
)
def test_convolutions(options: dict[str, object]) -> None:
    """torch.autograd.gradgradcheck compares with finite differences."""
    layer = nn.Conv2d(4, 2, 3, **options).double()  # type: ignore[arg-type]
    x = _numbers(1, 4, 5, 6).requires_grad_()
    w = layer.weight.detach().clone().requires_grad_()

    def function(x: Tensor, w: Tensor) -> Tensor:
        with CheapSecondDerivatives():
            return layer._conv_forward(x, w, layer.bias)

    assert torch.autograd.gradcheck(function, (x, w))
    assert torch.autograd.gradgradcheck(function, (x, w))


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2), nn.MaxPool2d((2, 3)), nn.MaxPool2d(3), nn.MaxPool2d(3, 2), nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
    ],
)  # fmt: skip
def test_poolings(layer: nn.Module) -> None:
    x = _numbers(2, 3, 7, 8).requires_grad_()

    def function(x: Tensor) -> Tensor:
        with CheapSecondDerivatives():
            result: Tensor = layer(x)
        return result

    torch.testing.assert_close(function(x), layer(x))
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_only_what_the_loss_depends_on() -> None:
    """Where only the weight's gradient is used, the other half of the formula is left out."""
    x, layer = _numbers(2, 3, 6, 6), nn.Conv2d(3, 4, 3).double()
    results = []
    for context in (CheapSecondDerivatives(), torch.enable_grad()):
        with context:
            (g,) = torch.autograd.grad(layer(x).pow(3).sum(), [layer.weight], create_graph=True)
        results.append(torch.autograd.grad(g.square().sum(), [layer.weight, layer.bias]))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
