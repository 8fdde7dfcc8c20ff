"""The examples of several clients, joined, and what can be computed for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from florilegium.models.stacked import StackedNetwork, stacked
from florilegium.partitions.clientdata import Examples


def form_for(network: nn.Module, examples: Examples, *, norms: bool = False) -> StackedNetwork | None:
    """Return a network's stacked form, if it has one that is faster on the examples' device.

    Args:
        network: the network.
        examples: what it is used on.
        norms: whether the caller gives what batch norm needs.
    """
    return stacked(network, gpu=examples.y.is_cuda, norms=norms)


def kind_of(examples: Examples) -> Hashable:
    """Return what examples must have in common to be joined."""
    x, y = examples.x, examples.y
    return x.shape[1:], x.dtype, y.shape[1:], y.dtype, y.device


def joined(parts: Sequence[Examples]) -> Examples:
    """Return all examples, one client after the other."""
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def starts(parts: Sequence[Examples]) -> Tensor:
    """Return the row of each client's first example among the joined ones, (N,), on the CPU."""
    return torch.tensor([0, *map(len, parts)]).cumsum(0)[:-1]
