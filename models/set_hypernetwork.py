"""FLowDUP's hypernetwork h(X) = h₂(mean of h₁(x) over X), which makes a point of a subspace of inputs (equation 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_initialisation
from florilegium.models.networks import build


class SetHypernetwork(nn.Module):
    """h and the centre ψ_r of what it makes.

    Args:
        inner: h₁, from inputs (n, *shape) to features (n, e).
        features: e.
        width: of the hidden layer of h₂.
        k: dimensions of the subspace.
        scale: the last layer's initial parameters are torch's times this.
    """

    def __init__(self, inner: nn.Module, features: int, width: int, k: int, scale: float) -> None:
        super().__init__()
        self.inner = inner
        self.outer = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, k))
        self.center = nn.Parameter(torch.zeros(k))
        with torch.no_grad():
            for parameter in self.outer[-1].parameters():
                parameter.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return v = h(X), (k,), of inputs (n, *shape)."""
        result: Tensor = self.outer(self.inner(x).mean(dim=0))
        return result


def build_set_hypernetwork(
    network: str, shape: tuple[int, ...], features: int, width: int, k: int, scale: float, seed: int
) -> SetHypernetwork:
    """Return h with initial parameters from ``seed``; h₁ is ``network`` with a last layer of ``features`` outputs."""
    inner = build(network, shape, features, seed)
    with torch_initialisation(seed, "set-hypernetwork"):
        return SetHypernetwork(inner, features, width, k, scale)
