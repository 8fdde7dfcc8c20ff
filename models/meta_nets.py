"""FedL2P's meta-nets (section 3.2, appendix E): they map statistics of a client's data to its hyper-parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_draws
from florilegium.models.batch_norm import layers_of, norms_of
from florilegium.models.parameters import trained

HIDDEN = 100
GAIN = 0.1
"""Gain of Xavier's normal initialisation."""
MOST = 1000.0
"""The largest learning-rate factor."""


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Return ``x`` kept between two bounds, with the gradient of ``x`` itself (straight-through estimator)."""
    return x + (x.clamp(low, high) - x).detach()


def _net(inputs: int, outputs: int, bias: float, hidden_bias: float) -> nn.Sequential:
    first, last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, outputs)
    for layer, start in ((first, hidden_bias), (last, bias)):
        nn.init.xavier_normal_(layer.weight, gain=GAIN)
        nn.init.constant_(layer.bias, start)
    return nn.Sequential(first, nn.ReLU(), last)


class MetaNets(nn.Module):
    """FedL2P's meta-parameters λ = {w_bn, w_lr, η̃}: BNNet, LRNet and a learning-rate multiplier for every tensor.

    Args:
        norms: B, number of batch-norm layers of the network; 0: there is no BNNet.
        layers: M, number of the network's layers with parameters.
        tensors: number of the network's parameter tensors that are not frozen, which the paper takes to be 2M.
        rate: initial value of every learning-rate multiplier η̃.
        hidden: whether the biases of hidden units start at the same value as those of outputs, 0.5 in BNNet and 1 in
            LRNet, instead of at 0.
    """

    def __init__(self, norms: int, layers: int, tensors: int, rate: float, *, hidden: bool = False) -> None:
        super().__init__()
        self.bn = _net(norms, norms, 0.5, 0.5 * hidden) if norms else None
        self.lr = _net(2 * layers, tensors, 1.0, 1.0 * hidden)
        self.multipliers = nn.Parameter(torch.full((tensors,), rate))

    def mixing(self, distances: Tensor) -> Tensor:
        """Return the mixing weight β ∈ [0, 1] of every batch-norm layer, (B,), for the layers' distances ξ (B,)."""
        if self.bn is None:
            return distances
        return clamp(self.bn(distances), 0.0, 1.0)

    def rates(self, moments: Tensor) -> Tensor:
        """Return the learning rate η of every parameter tensor.

        Args:
            moments: mean and standard deviation of each layer's inputs, (2M,).
        """
        return clamp(self.lr(moments), 0.0, MOST) * self.multipliers


def build_meta_nets(network: nn.Module, rate: float, seed: int, *, hidden: bool = False) -> MetaNets:
    """Return FedL2P's meta-nets for ``network``, initialised from ``seed``; for ``hidden`` see :class:`MetaNets`."""
    tensors = len(trained(network))
    with torch_draws(seed, "meta-nets"):
        return MetaNets(len(norms_of(network)), len(layers_of(network)), tensors, rate, hidden=hidden)
