"""FLowDUP's hypernetwork h(X) = h₂(mean of h₁(x) over X): it maps a set of inputs to a point of a subspace (eq. 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_draws
from florilegium.models.networks import build


class SetHypernetwork(nn.Module):
    """FLowDUP's hypernetwork h, and the centre ψ_r of its outputs.

    Args:
        inner: h₁, which maps inputs (n, *shape) to features (n, e).
        features: number of features e.
        width: width of the hidden layer of h₂.
        k: dimensions of the subspace.
        scale: factor on PyTorch's default initial parameters of the last layer.
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
        """Return v = h(X), (k,), for a set X of inputs (n, *shape)."""
        result: Tensor = self.outer(self.inner(x).mean(dim=0))
        return result


def build_set_hypernetwork(
    network: str, shape: tuple[int, ...], features: int, width: int, k: int, scale: float, seed: int
) -> SetHypernetwork:
    """Return FLowDUP's hypernetwork, initialised from ``seed``; h₁ is ``network`` with ``features`` outputs."""
    inner = build(network, shape, features, seed)
    with torch_draws(seed, "set-hypernetwork"):
        return SetHypernetwork(inner, features, width, k, scale)
