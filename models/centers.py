"""k-means as a network, whose largest output is that of the nearest centre."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Centers(nn.Module):
    """Cluster centres ν_1 … ν_k of inputs flattened to d numbers.

    The ``argmax`` of the outputs assigns an input to its nearest centre.

    Args:
        d: size of a flattened input.
        k: number of centres.
    """

    def __init__(self, d: int, k: int) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.zeros(k, d))

    def forward(self, x: Tensor) -> Tensor:
        """Return minus the squared distances, (n, k), for inputs (n, …)."""
        return -torch.cdist(x.flatten(1), self.centers).square()


def centers(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """C cluster centres, all at the origin, which predict the nearest; for the clusterings."""
    blocks = nn.Sequential()
    blocks.add_module("nearest", Centers(math.prod(shape), classes))
    return blocks
