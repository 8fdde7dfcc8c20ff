"""A generator of features: maps noise and a class to features that a classifier takes for that class.

It needs no data: it learns from a classifier alone. FedGen's server trains one (Zhu, Hong, Zhou 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from florilegium.common.seeds import torch_draws


class FeatureGenerator(nn.Module):
    """G(ε, y): a dense layer with batch norm and ReLU, and a dense layer.

    Args:
        classes: number of classes C.
        noise: length of the noise ε.
        width: units of the hidden layer.
        features: length d of the generated features.
    """

    def __init__(self, classes: int, noise: int, width: int, features: int) -> None:
        super().__init__()
        self.classes, self.noise = classes, noise
        # No bias: batch norm takes it away, and Adam would make steps of its gradient, which is rounding.
        self.hidden = nn.Sequential(nn.Linear(noise + classes, width, bias=False), nn.BatchNorm1d(width), nn.ReLU())
        self.output = nn.Linear(width, features)

    def forward(self, ε: Tensor, y: Tensor) -> Tensor:
        """Return features (n, d) for noise (n, noise) and classes (n,)."""
        z: Tensor = self.output(self.hidden(torch.cat([ε, one_hot(y, self.classes).to(ε)], dim=1)))
        return z

    def draw(self, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return features (n, d) for classes (n,), and the standard normal noise (n, noise) that they are made of."""
        ε = torch.randn(len(y), self.noise, generator=generator).to(self.output.weight)
        return self(ε, y), ε


def diversity_loss(ε: Tensor, z: Tensor) -> Tensor:
    """Return exp(−mean over pairs of ‖ε_i − ε_j‖²/p · ‖z_i − z_j‖₁/d): small if other noise gives other features.

    Args:
        ε: noise (n, p).
        z: features (n, d) generated from it.
    """
    between = torch.cdist(ε, ε).square() / ε.shape[1] * torch.cdist(z, z, p=1) / z.shape[1]
    return between.mean().neg().exp()


def build_generator(classes: int, noise: int, width: int, features: int, seed: int) -> FeatureGenerator:
    """Return a generator initialised from ``seed``; for the other arguments see :class:`FeatureGenerator`."""
    with torch_draws(seed, "generator"):
        return FeatureGenerator(classes, noise, width, features)
