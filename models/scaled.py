"""A network behind a client's own scaling of its inputs, as it is kept, exported and used for predictions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

PREFIX = "scaling."
"""Begin of the names of the scaling's tensors in a model's file."""
SCALING = ("fill", "mean", "std")
"""The scaling's tensors."""


class Scaled(nn.Module):
    """Fills in missing values, standardises, and applies a network.

    Args:
        network: the network.
        fill, mean, std: the scaling of the d features of an input, (d,) each.
    """

    def __init__(self, network: nn.Module, fill: Tensor, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("fill", fill)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's outputs for inputs (n, d) in the federation's scaling."""
        assert isinstance(self.fill, Tensor)
        assert isinstance(self.mean, Tensor)
        assert isinstance(self.std, Tensor)
        outputs: Tensor = self.network((torch.where(x.isnan(), self.fill, x) - self.mean) / self.std)
        return outputs
