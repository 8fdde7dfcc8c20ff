"""Copy named arrays into and out of a network; these arrays are exchanged, stored and averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, in the order of the network's ``state_dict``."""

BLOCK = 1 << 16
"""Number of array entries that are handled at a time, so that intermediate results stay in the processor's cache."""


def exchanged(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of ``model`` that can be averaged, by name: parameters and floating-point buffers.

    A tensor with several names (tied weights) is returned once, under the first of them, as in ``named_parameters``.
    Integer buffers (batch norm's count of batches) have no meaningful mean and are not exchanged.
    """
    found = model.state_dict(keep_vars=True).items()
    once = {id(tensor): name for name, tensor in reversed([*found])}
    return {
        name: tensor.detach()
        for name, tensor in found
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and once[id(tensor)] == name
    }


def unexchanged(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of ``model`` that :func:`exchanged` does not contain, by name: counters, masks, caches."""
    sent = exchanged(model)
    return {name: buffer for name, buffer in model.named_buffers() if name not in sent}


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of ``model`` that training changes, by name: those that are not frozen."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def frozen(model: nn.Module) -> list[str]:
    """Return the names of the parameters of ``model`` that training must not change (``requires_grad = False``)."""
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def is_statistic(name: str) -> bool:
    """Return whether tensor ``name`` of :func:`exchanged` is a running statistic of batch norm, not a parameter."""
    return name.endswith(("running_mean", "running_var"))


def without_statistics(arrays: Arrays) -> Arrays:
    """Return ``arrays`` without running statistics of batch norm, which are no directions or places of learning."""
    return {name: array for name, array in arrays.items() if not is_statistic(name)}


def get_arrays(model: nn.Module) -> Arrays:
    """Return copies of the tensors of :func:`exchanged` as NumPy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in exchanged(model).items()}


def set_arrays(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy ``arrays`` into the tensors of the same names, keeping each tensor's memory layout.

    Raises:
        ValueError: if the network has no tensor of an array's name, or it has another shape; the message names it.
    """
    with torch.no_grad():
        for name, array in arrays.items():
            tensor = _tensor(model, name)
            if tensor is None:
                raise ValueError(f"the network has no tensor '{name}'")
            if tensor.shape != array.shape:
                raise ValueError(f"'{name}' has shape {array.shape}, the network needs {tuple(tensor.shape)}")
            tensor.copy_(torch.from_numpy(np.require(array, requirements=["C", "W"])))


def _tensor(model: nn.Module, name: str) -> Tensor | None:
    """Return a parameter or buffer by its name; None if there is none. ``state_dict`` would go through all of them."""
    *path, last = name.split(".")
    owner: nn.Module | None = model
    for part in path:
        owner = owner._modules.get(part) if owner is not None else None
    if owner is None:
        return None
    parameter = owner._parameters.get(last)
    return owner._buffers.get(last) if parameter is None else parameter


def part(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names begin with ``prefix``, named without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def num_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of ``arrays`` in bytes, without names and headers."""
    return sum(array.nbytes for array in arrays.values())


def norm(arrays: Mapping[str, NDArray[Any]]) -> float:
    """Return the Euclidean norm over all entries of all arrays, in double precision."""
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays.values()))


def distance(arrays: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]]) -> float:
    """Return the Euclidean norm of ``arrays`` − ``others`` over all entries of all arrays, in double precision.

    Args:
        arrays: arrays by name.
        others: arrays of the same shapes, by the same names; further ones are ignored.
    """
    total = 0.0
    for name, array in arrays.items():
        one, other = array.reshape(-1), others[name].reshape(-1)
        for start in range(0, len(one), BLOCK):
            block = slice(start, start + BLOCK)
            difference = np.subtract(one[block], other[block], dtype=np.float64)
            total += float(np.square(difference, out=difference).sum())
    return math.sqrt(total)
