"""A network as a function of its tensors: the same outputs and gradients, and left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from florilegium.models.adapters import adapted
from florilegium.models.called import as_function
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays, set_arrays, trained
from florilegium.models.settings import AdapterSettings


class Tied(nn.Module):
    """Two layers with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (b, 64) for images (b, 1, 8, 8)."""
        return self.second(torch.relu(self.first(x.flatten(1))))


def _networks() -> list[nn.Module]:
    found: list[nn.Module] = [Tied(), build("mlp", (1, 8, 8), 10, 1)]
    for kind in ("lora", "ia3"):
        adapter = AdapterSettings(kind=kind, targets="fc1.1,fc2.0", rank=4)  # type: ignore[arg-type]
        found.append(adapted(build("mlp", (1, 8, 8), 10, 1), adapter, "mlp"))
    return found


@pytest.mark.parametrize("number", range(4), ids=["tied", "plain", "lora", "ia3"])
def test_it_computes_what_a_copy_with_these_tensors_computes(number: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = _networks()[number]
        x = torch.randn(5, 1, 8, 8)
        others = {name: 0.1 * torch.randn_like(own) for name, own in trained(network).items()}
    before, kept = get_arrays(network), network(x)
    for other in others.values():
        other.requires_grad_()
    found = as_function(network, others)([*others.values()], x)
    gradients = torch.autograd.grad(found.square().sum(), [*others.values()])
    assert torch.equal(network(x), kept)
    assert {*trained(network)} == {*others}
    set_arrays(network, {name: other.detach().numpy() for name, other in others.items()})
    expected = network(x)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    for name, gradient in zip(others, gradients, strict=True):
        torch.testing.assert_close(gradient, trained(network)[name].grad, rtol=1e-4, atol=1e-4)
    set_arrays(network, before)
    assert torch.equal(network(x), kept)


def test_a_network_that_fails_gets_its_own_tensors_back() -> None:
    network, x = build("mlp", (1, 8, 8), 10, 1), torch.zeros(5, 1, 8, 8)
    before, names = network(x), [*trained(network)]
    others = [torch.ones_like(own) for own in trained(network).values()]
    with pytest.raises(RuntimeError):
        as_function(network, names)(others, x[..., 1:])
    with pytest.raises(ValueError, match="zip"):
        as_function(network, names)(others[1:], x)
    assert torch.equal(network(x), before)
