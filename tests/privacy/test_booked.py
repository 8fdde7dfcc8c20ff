"""Tests of privacy.booked: norms and clipped sums are those of the gradients of examples one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from florilegium.common.errors import RunError
from florilegium.privacy.booked import Booked, supported
from florilegium.privacy.dp_sgd import PrivateGradients

SHARED = nn.Linear(6, 6)
NETWORKS = {
    "dense": (nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)), (6,)),
    "convolution": (
        nn.Sequential(
            nn.Conv2d(2, 5, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)), nn.ReLU(), nn.Conv2d(5, 4, 1),
            nn.Flatten(), nn.Linear(180, 3),
        ),
        (2, 9, 7),
    ),
    "many channels": (nn.Sequential(nn.Conv2d(40, 30, 2), nn.Flatten(), nn.Linear(60, 3)), (40, 2, 3)),
    "positions": (nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 9), nn.Flatten(), nn.Linear(36, 3)), (4, 6)),
    "a layer twice": (nn.Sequential(SHARED, nn.Tanh(), SHARED, nn.Linear(6, 3)), (6,)),
}  # fmt: skip
every_network = pytest.mark.parametrize("name", NETWORKS)
COUNT = 5


def _network(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    network, shape = NETWORKS[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(COUNT, *shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        outputs = network.double()(x)
    return network, x, torch.randn(outputs.shape, generator=generator, dtype=torch.float64)


def _alone(network: nn.Module, x: Tensor, scale: Tensor) -> list[list[Tensor]]:
    """Return each example's gradients, by PyTorch's own backward pass."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    return [
        [*torch.autograd.grad((network(x[i : i + 1]) * scale[i]).sum(), parameters)] for i in range(len(x))
    ]  # fmt: skip


@every_network
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_clipped_sum_is_that_of_single_examples(name: str, layout: str, frozen: bool) -> None:
    network, x, scale = _network(name)
    if layout == "channels last" and x.dim() == 4:
        network, x = network.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    first = next(network.parameters())
    first.requires_grad_(not frozen)
    try:
        each = _alone(network, x, scale)
        norms = torch.tensor([float(torch.cat([g.flatten() for g in one]).norm()) for one in each])
        longest = float(norms.median())
        factors = [min(1.0, longest / (float(norm) + 1e-6)) for norm in norms]
        expected = [sum(f * one[i] for f, one in zip(factors, each, strict=True)) for i in range(len(each[0]))]
        private = PrivateGradients(network, 0.0, longest, 0.5, 2 * COUNT)
        try:
            private.backward(
                lambda rows: (private.model(x[rows]) * scale[rows]).flatten(1).sum(dim=1), torch.arange(COUNT)
            )
            torch.testing.assert_close(private.norms(), norms, check_dtype=False)
            private.protect()
            found = [p.grad for p in network.parameters() if p.requires_grad]
            for own, right in zip(found, expected, strict=True):
                torch.testing.assert_close(own, right / COUNT)
        finally:
            private.end()
    finally:
        first.requires_grad_(True)
    assert all("forward" not in vars(module) for module in network.modules())


@pytest.mark.parametrize("name", ["dense", "convolution", "positions"])
def test_products_in_bfloat16_are_clipped_exactly(name: str) -> None:
    """Norms and sums are of the rounded gradients, in single precision: no example has a longer part than C."""
    network, x, scale = _network(name)
    network, x, scale = network.float(), x.float(), scale.float()
    longest, sums = 0.01, []
    for half, rows in ((True, [[row] for row in range(COUNT)]), (True, [[*range(COUNT)]]), (False, [[*range(COUNT)]])):
        sums.append([])
        for chosen in rows:
            private = PrivateGradients(network, 0.0, longest, 0.5, 2)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                losses = (network(x[chosen]) * scale[chosen]).flatten(1).sum(dim=1)
            private.backward(lambda rows, losses=losses: losses, torch.tensor(chosen))
            private.protect()
            sums[-1].append(torch.cat([p.grad.flatten() for p in network.parameters()]))
            private.end()
    alone, (together,), (exact,) = sums
    torch.testing.assert_close([float(own.norm()) for own in alone], COUNT * [longest], rtol=2e-4, atol=0.0)
    torch.testing.assert_close(torch.stack(alone).sum(dim=0), together, rtol=0.0, atol=1e-4 * longest)
    torch.testing.assert_close(together, exact, rtol=0.0, atol=0.05 * longest)
    assert not torch.equal(together, exact)


def test_an_example_whose_gradient_is_not_finite_counts_as_zero() -> None:
    network, x, _ = _network("convolution")
    found = []
    for bad in (False, True):
        inputs = x.clone()
        inputs[2] = torch.inf if bad else 0.0
        rows = torch.arange(COUNT) if bad else torch.tensor([0, 1, 3, 4])
        private = PrivateGradients(network, 0.0, 0.1, 0.5, 2 * COUNT)
        private.backward(lambda rows, private=private, inputs=inputs: private.model(inputs[rows]).sum(dim=1), rows)
        private.protect()
        found.append([p.grad.clone() for p in network.parameters() if p.grad is not None])
        private.end()
    for right, own in zip(*found, strict=True):
        torch.testing.assert_close(own, right)


def test_a_parameter_that_is_used_without_its_layer_is_refused() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.layer.weight + self.layer(x)

    network = Around()
    private = PrivateGradients(network, 0.0, 1.0, 0.5, 4)
    with pytest.raises(RunError, match="without its layer"):
        private.backward(lambda rows: private.model(torch.ones(2, 4)).sum(dim=1), torch.arange(2))
    private.end()


@pytest.mark.parametrize(
    "network",
    [
        nn.LSTM(3, 3), nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), nn.Conv2d(2, 2, 3, padding="same"),
        nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(2, affine=False, track_running_stats=True)),
        nn.MultiheadAttention(2, 1),
    ],
)  # fmt: skip
def test_other_networks_are_left_to_opacus(network: nn.Module) -> None:
    assert not supported(network)


def test_positions_are_no_statistics() -> None:
    network = nn.Sequential(nn.Linear(2, 2))
    network.register_buffer("positions", torch.arange(3))
    assert supported(network)


def test_a_parameter_of_two_layers_is_left_to_opacus() -> None:
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert supported(network)
    network[1].weight = network[0].weight
    assert not supported(network)


def test_rows_that_are_no_examples_are_refused() -> None:
    network = nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 4))
    private = PrivateGradients(network, 0.0, 1.0, 0.5, 4)
    with pytest.raises(RunError, match="6 rows of 2 examples"):
        private.backward(lambda rows: private.model(torch.ones(2, 3, 4)).view(2, -1).sum(dim=1), torch.arange(2))
    private.end()


def test_frozen_layers_note_nothing() -> None:
    network = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)).requires_grad_(False)
    network[1].requires_grad_(True)
    assert supported(network)
    booked = Booked(network, 1.0)
    network(torch.ones(2, 3)).sum().backward()
    assert booked.clipped(2)[0].shape == (2,)
    booked.end()
