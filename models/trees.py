"""Boosted trees as a network: arrays of splits and leaves of complete binary trees, whose sums are the outputs."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor, nn

MOST = float(np.finfo(np.float32).max)
"""A threshold that every input is below."""


def margins(outputs: int) -> int:
    """Return K, the number of trees of a boosting round, for a network with this many outputs: two classes need one."""
    return 1 if outputs == 2 else outputs


class Trees(nn.Module):
    """T = K·R complete binary trees of depth D; tree t belongs to margin t mod K.

    Node i has the children 2i + 1, to the left, and 2i + 2. An input x goes left at a node if x[feature] < threshold,
    or if it lacks that value and ``missing`` is 1. All arrays are parameters, so that they travel as those of any
    network do; ``feature``, ``lacking`` and ``missing`` hold whole numbers. Zeros are trees that add nothing.

    Args:
        outputs: number of outputs; of two, the first is 0.
        number: R, trees for each margin.
        depth: D.

    Attributes:
        feature, threshold: what a node compares, (T, 2^D − 1).
        lacking: place of the feature that is 1 where the value was missing, −1: it never is; (T, 2^D − 1).
        missing: 1 if inputs that lack the value go left, 0 if they go right, (T, 2^D − 1).
        leaf: values, (T, 2^D).
        bias: the margins without trees, (K,).
    """

    def __init__(self, outputs: int, number: int, depth: int) -> None:
        super().__init__()
        self.outputs, self.k, self.depth = outputs, margins(outputs), depth
        trees, nodes = number * self.k, 2**depth - 1
        self.feature = nn.Parameter(torch.zeros(trees, nodes))
        self.threshold = nn.Parameter(torch.zeros(trees, nodes))
        self.lacking = nn.Parameter(torch.zeros(trees, nodes))
        self.missing = nn.Parameter(torch.zeros(trees, nodes))
        self.leaf = nn.Parameter(torch.zeros(trees, nodes + 1))
        self.bias = nn.Parameter(torch.zeros(self.k))

    def leaves(self, x: Tensor) -> Tensor:
        """Return which leaf of each tree inputs (n, …) reach, (n, T)."""
        x = x.flatten(1)
        trees, nodes = self.feature.shape
        first = torch.arange(trees, device=x.device) * nodes
        node = torch.zeros(len(x), trees, dtype=torch.int64, device=x.device)
        feature, lacking = self.feature.long().flatten(), self.lacking.long().flatten()
        for _ in range(self.depth):
            here = first + node
            lost = (lacking[here] >= 0) & (x.gather(1, lacking[here].clamp(min=0)) > 0.5)
            below = x.gather(1, feature[here]) < self.threshold.flatten()[here]
            left = torch.where(lost, self.missing.flatten()[here] > 0.5, below)
            node = 2 * node + 2 - left.long()
        return node - nodes

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, outputs), for inputs (n, …)."""
        trees, leaves = self.leaf.shape
        places = torch.arange(trees, device=x.device) * leaves + self.leaves(x)
        values = self.leaf.flatten()[places].reshape(len(x), trees // self.k, self.k)
        found = self.bias + values.sum(dim=1)
        return found if self.outputs != 2 else torch.cat([torch.zeros_like(found), found], dim=1)


def trees(shape: tuple[int, ...], classes: int, number: int = 100, depth: int = 4) -> nn.Sequential:
    """Boosted trees, for method `trees`: their number and depth are those of table `trees`."""
    del shape
    return nn.Sequential(OrderedDict(trees=Trees(classes, number, depth)))
