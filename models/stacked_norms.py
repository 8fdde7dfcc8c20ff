"""Batch norm in many copies of a network at once, each with statistics of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from florilegium.models.batch_norm import Norm


@dataclass(frozen=True)
class Norms:
    """What a pass of N copies needs for batch norm, besides parameters.

    Attributes:
        buffers: those of the network in its order, (N, *shape) each; training changes them in place.
        training: whether batches are normalised with their own statistics, or with the running ones.
        sizes: in training, the number of examples of each copy's batch, (N,): its first ones. The others fill it up,
            and are not counted. None: all batches are full.
    """

    buffers: Sequence[Tensor]
    training: bool
    sizes: Tensor | None = None


def has_form(layer: Norm) -> bool:
    """Return whether a batch-norm layer can be run in many copies: if it keeps running averages."""
    usual = type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d)
    return usual and layer.affine and layer.track_running_stats and layer.momentum is not None


def normalised(
    layer: Norm, parameters: Sequence[Tensor], buffers: Sequence[Tensor], values: Tensor, norms: Norms
) -> Tensor:
    """Return the layer's outputs in N copies.

    Args:
        layer: gives momentum and ε.
        parameters: γ and β, (N, channels) each.
        buffers: running mean and variance, (N, channels) each, and number of batches, (N,).
        values: inputs (b, N·channels, …): copies are further channels, which have their own statistics anyway.
        norms: how to normalise.
    """
    assert layer.momentum is not None
    mean, variance, batches = buffers
    if norms.training:
        batches += 1
    if norms.training and norms.sizes is not None:
        return _of_the_first(layer.momentum, layer.eps, parameters, (mean, variance), values, norms.sizes)
    γ, β = (parameter.flatten() for parameter in parameters)
    return batch_norm(values, mean.view(-1), variance.view(-1), γ, β, norms.training, layer.momentum, layer.eps)


def _of_the_first(
    momentum: float, ε: float, parameters: Sequence[Tensor], running: tuple[Tensor, Tensor], values: Tensor,
    sizes: Tensor,
) -> Tensor:  # fmt: skip
    """Normalise by the first ``sizes`` examples of each copy, whose statistics go into the running ones."""
    x = values.unflatten(1, (len(sizes), -1))  # (b, N, channels, …)
    places = (1, *x.shape[1:3], *[1] * (x.dim() - 3))  # of statistics (N, channels)
    real = torch.arange(len(x), device=x.device)[:, None] < sizes
    real = real.view(*real.shape, *[1] * (x.dim() - 2))
    axes, counts = (0, *range(3, x.dim())), sizes[:, None] * math.prod(x.shape[3:])
    mean = (x * real).sum(axes) / counts
    centred = x - mean.view(places)
    variance = (centred * real).square().sum(axes) / counts
    with torch.no_grad():
        for kept, found in zip(running, (mean, variance * counts / (counts - 1)), strict=True):
            kept.lerp_(found, momentum)
    γ, β = (parameter.view(places) for parameter in parameters)
    return (centred * (variance + ε).rsqrt().view(places) * γ + β).flatten(1, 2)
