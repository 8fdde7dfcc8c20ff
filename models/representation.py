"""FedSR's probabilistic representation (Nguyen et al. 2022, section 3): a Gaussian for each input and each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from florilegium.common.seeds import torch_draws

LEAST = 1e-6
"""Added to standard deviations and to the scale, whose logarithms are taken, to keep them above 0."""


class Representation(nn.Module):
    """Computes p(z|x) = N(μ(x), σ(x)²) from features μ(x), and holds r(z|y) = N(μ_y, σ_y²) for every class.

    Args:
        features: d, length of μ(x) and z.
        classes: number of classes C.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.spread = nn.Linear(features, features)
        self.class_means = nn.Parameter(torch.zeros(classes, features))
        self.class_spreads = nn.Parameter(torch.ones(classes, features))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, μ: Tensor) -> Normal:
        """Return p(z|x) for features (n, d); σ(x) is a softplus of a linear function of them."""
        return Normal(μ, softplus(self.spread(μ)) + LEAST)

    def information(self, p: Normal, y: Tensor) -> Tensor:
        """Return the mean of KL(p(c·z|x) ‖ r(·|y)) over examples with classes y (n,), where c is the learned scale.

        It is an upper bound of the conditional mutual information I(x, z | y).
        """
        c = self.scale.abs() + LEAST
        r = Normal(self.class_means[y], softplus(self.class_spreads[y]) + LEAST)
        return kl_divergence(Normal(c * p.loc, c * p.scale), r).sum(dim=1).mean()


def build_representation(features: int, classes: int, seed: int) -> Representation:
    """Return a representation of ``features`` dimensions, initialised from ``seed``."""
    with torch_draws(seed, "representation"):
        return Representation(features, classes)
