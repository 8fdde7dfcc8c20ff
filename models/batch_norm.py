"""Batch norm with other statistics than those it was trained with: a client's own, or those of each batch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

Norm = nn.modules.batchnorm._BatchNorm
Moments = tuple[Tensor, Tensor]
"""Mean and variance of every channel, (c,) each."""


def norms_of(model: nn.Module) -> dict[str, Norm]:
    """Return the batch-norm layers of a network that keep statistics, by name, first to last."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Norm) and module.track_running_stats
    }


@torch.no_grad()
def measure(model: nn.Module, x: Tensor, batch: int) -> dict[str, Moments]:
    """Return mean and (unbiased) variance of every batch-norm layer's inputs, by one pass over ``x`` as in a test.

    Args:
        model: the network, whose own statistics normalise in that pass.
        x: inputs (n, …).
        batch: how many go through the network at a time, which changes nothing but rounding.
    """
    sums: dict[str, list[Tensor]] = {}
    counts: dict[str, int] = {}

    def note(name: str, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1).double()  # (c, everything else)
        parts = [values.sum(dim=1), values.square().sum(dim=1)]
        sums[name] = [a + b for a, b in zip(sums[name], parts, strict=True)] if name in sums else parts
        counts[name] = counts.get(name, 0) + values.shape[1]

    handles = [norm.register_forward_pre_hook(partial(note, name)) for name, norm in norms_of(model).items()]
    try:
        model.eval()
        for part in x.split(batch):
            model(part)
    finally:
        for handle in handles:
            handle.remove()
    result = {}
    for name, (total, squares) in sums.items():
        count = counts[name]
        mean = total / count
        variance = (squares - count * mean**2).clamp(min=0) / max(1, count - 1)
        result[name] = mean.to(x.dtype), variance.to(x.dtype)
    return result


@torch.no_grad()
def give(model: nn.Module, statistics: Mapping[str, Moments]) -> None:
    """Let the network normalise by ``statistics``."""
    norms = norms_of(model)
    for name, (mean, variance) in statistics.items():
        running_mean, running_var = norms[name].running_mean, norms[name].running_var
        assert running_mean is not None
        assert running_var is not None
        running_mean.copy_(mean)
        running_var.copy_(variance)


class BatchStatistics(nn.Module):
    """A network that normalises by the statistics of each batch, in tests too.

    Args:
        network: the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's outputs; only the batch-norm layers are in training mode."""
        norms = norms_of(self.network).values()
        kept = [(norm.training, norm.momentum) for norm in norms]
        try:
            for norm in norms:
                norm.train()
                norm.momentum = 0.0  # the running statistics stay as they are
            result: Tensor = self.network(x)
            return result
        finally:
            for norm, (training, momentum) in zip(norms, kept, strict=True):
                norm.train(training)
                norm.momentum = momentum
