"""FedRoD's personal heads (Chen and Chao 2022, section 4): learned by each client, or made by a shared hypernetwork.

A head is a matrix (C, d + 1): weights for d features, and biases in the last column.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_draws


class LinearHead(nn.Module):
    """A head that is a parameter, at first 0.

    Args:
        classes, features: numbers C and d.
    """

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.zeros(classes, features + 1))

    def forward(self, frequencies: Tensor) -> Tensor:
        """Return the head, whatever the class frequencies (C,) are."""
        return self.head


class HeadNetwork(nn.Module):
    """A hypernetwork with one hidden layer: it makes a head from class frequencies.

    Args:
        classes, features: numbers C and d.
        width: number of hidden ReLU units.
    """

    def __init__(self, classes: int, features: int, width: int) -> None:
        super().__init__()
        self.shape = (classes, features + 1)
        self.layers = nn.Sequential(nn.Linear(classes, width), nn.ReLU(), nn.Linear(width, classes * (features + 1)))

    def forward(self, frequencies: Tensor) -> Tensor:
        """Return the head for class frequencies (C,)."""
        head: Tensor = self.layers(frequencies).view(self.shape)
        return head


def build_head_network(classes: int, features: int, width: int, seed: int) -> HeadNetwork:
    """Return a hypernetwork for heads of these sizes, initialised from ``seed``."""
    with torch_draws(seed, "head network"):
        return HeadNetwork(classes, features, width)


def logits(head: Tensor, z: Tensor) -> Tensor:
    """Return the outputs (n, C) of a head for features (n, d)."""
    return nn.functional.linear(z, head[:, :-1], head[:, -1])
