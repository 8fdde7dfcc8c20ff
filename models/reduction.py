"""Smaller forms of a network's dense layers: low-rank factors, fixed sparse masks, fewer hidden units.

All functions work on the named arrays of a network, or of a part of it. :func:`fitting` builds the network that fits
given arrays.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear

from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays, exchanged

FIRST, SECOND = "first", "second"


class LowRank(nn.Module):
    """A dense layer as two factors: y = second · (first · x) + bias, with first (r × N) and second (M × r)."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(rank, inputs))
        self.second = nn.Parameter(torch.empty(outputs, rank))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs (…, N) to outputs (…, M)."""
        return linear(linear(x, self.first), self.second, self.bias)


_READERS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules that read the weights of their dense layers themselves, so that these must keep their form."""


def dense_layers(network: nn.Module) -> list[str]:
    """Return the paths of a network's dense layers, first to last, without those that cannot take another form.

    These are layers in low-rank form already, also those of adapters, which have a second name where they compute;
    layers of attention and transformer layers, tied weights, and what is frozen, of which all clients hold the same.
    """
    names = exchanged(network)
    kept = {id(part) for module in network.modules() if isinstance(module, _READERS) for part in module.modules()}
    named = Counter(id(module) for _, module in network.named_modules(remove_duplicate=False))
    kept |= {module for module, times in named.items() if times > 1}
    return [
        path
        for path, module in network.named_modules()
        if isinstance(module, nn.Linear)
        and id(module) not in kept
        and f"{path}.weight" in names
        and all(parameter.requires_grad for parameter in module.parameters())
    ]


def expand(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Multiply low-rank factors out, which gives ordinary dense layers that compute the same function."""
    full: Arrays = {}
    for name, array in arrays.items():
        path, _, kind = name.rpartition(".")
        if kind == FIRST:
            full[f"{path}.weight"] = arrays[f"{path}.{SECOND}"] @ array
        elif kind != SECOND:
            full[name] = array
    return full


def factorise(arrays: Mapping[str, NDArray[Any]], ranks: Mapping[str, int], *, always: bool = False) -> Arrays:
    """Replace dense layers by their best approximation of a given rank, as two factors (PPFE, section 4.1).

    W = UΣVᵀ (M × N) becomes (U√Σ)(√ΣVᵀ), truncated to the r largest singular values. The error in Frobenius norm is the
    norm of the remaining singular values. The rank is limited to min(N, M).

    Args:
        arrays: arrays of a network, with low-rank factors or ordinary layers.
        ranks: rank r ≥ 1 of each dense layer, by the layer's path; layers that are not in ``arrays`` are ignored.
        always: whether to factorise a layer even if that saves no parameters, r(N + M) ≥ NM.
    """
    full, result = expand(arrays), Arrays()
    for name, array in full.items():
        path, _, kind = name.rpartition(".")
        rank = min(ranks.get(path, 0), *array.shape) if kind == "weight" and path in ranks else 0
        if not rank or (rank * sum(array.shape) >= array.size and not always):
            result[name] = array
            continue
        u, sigma, vt = np.linalg.svd(array.astype(np.float64), full_matrices=False)
        root = np.sqrt(sigma[:rank])
        result[f"{path}.{FIRST}"] = (root[:, None] * vt[:rank]).astype(array.dtype)
        result[f"{path}.{SECOND}"] = (u[:, :rank] * root).astype(array.dtype)
    return result


def mask(path: str, shape: tuple[int, ...], sparsity: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the weights of dense layer ``path`` that remain after a share ``sparsity`` is dropped.

    The mask depends on seed, path and shape alone, so it is the same for the server and all clients.
    """
    keep = np.ones(math.prod(shape), dtype=bool)
    dropped = numpy_generator(seed, "mask", path).choice(keep.size, size=round(sparsity * keep.size), replace=False)
    keep[dropped] = False
    return keep.reshape(shape)


def narrow(arrays: Mapping[str, NDArray[Any]], layers: Sequence[str], widths: Sequence[int]) -> Arrays:
    """Drop hidden units between consecutive dense layers, and keep those with the largest weights.

    Units are ranked by the product of the norms of their incoming and outgoing weights.

    Args:
        arrays: arrays of a network with ordinary dense layers.
        layers: paths of consecutive dense layers, with only activations between them.
        widths: number of units to keep between layer i and layer i + 1; one entry fewer than ``layers``.
    """
    result = dict(arrays)
    for before, after, width in zip(layers, layers[1:], widths, strict=False):
        incoming, outgoing = result[f"{before}.weight"], result[f"{after}.weight"]
        size = np.linalg.norm(incoming, axis=1) * np.linalg.norm(outgoing, axis=0)
        chosen = np.sort(np.argsort(-size, kind="stable")[:width])
        result[f"{before}.weight"] = incoming[chosen]
        result[f"{before}.bias"] = result[f"{before}.bias"][chosen]
        result[f"{after}.weight"] = outgoing[:, chosen]
    return result


def fitting(network: nn.Sequential, arrays: Mapping[str, NDArray[Any]]) -> nn.Sequential:
    """Return a copy of ``network`` whose dense layers have the form of ``arrays``; its parameters are not set."""
    fitted = copy.deepcopy(network)
    device = next(network.parameters()).device
    for path in dense_layers(network):
        replacement: nn.Module | None = None
        if f"{path}.{FIRST}" in arrays:
            (rank, inputs), (outputs, _) = arrays[f"{path}.{FIRST}"].shape, arrays[f"{path}.{SECOND}"].shape
            replacement = LowRank(inputs, outputs, rank)
        elif arrays[f"{path}.weight"].shape != network.get_parameter(f"{path}.weight").shape:
            outputs, inputs = arrays[f"{path}.weight"].shape
            replacement = nn.utils.skip_init(nn.Linear, inputs, outputs)
        if replacement is not None:
            parent, _, name = path.rpartition(".")
            setattr(fitted.get_submodule(parent), name, replacement.to(device))
    return fitted
