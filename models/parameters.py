"""Copy named arrays into and out of a network; these arrays are exchanged, stored and averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, in the order of the network's ``state_dict``."""


def exchanged(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of ``model`` that can be averaged, by name: parameters and floating-point buffers.

    Integer buffers (batch norm's count of batches) have no meaningful mean and are not exchanged.
    """
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def is_statistic(name: str) -> bool:
    """Return whether tensor ``name`` of :func:`exchanged` is a running statistic of batch norm, not a parameter."""
    return name.endswith(("running_mean", "running_var"))


def get_arrays(model: nn.Module) -> Arrays:
    """Return copies of the tensors of :func:`exchanged` as NumPy arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in exchanged(model).items()}


def set_arrays(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy ``arrays`` into the tensors of the same names, keeping each tensor's memory layout.

    Raises:
        ValueError: if the network has no tensor of an array's name, or it has another shape; the message names it.
    """
    tensors = model.state_dict()
    with torch.no_grad():
        for name, array in arrays.items():
            if name not in tensors:
                raise ValueError(f"the network has no tensor '{name}'")
            if tensors[name].shape != array.shape:
                raise ValueError(f"'{name}' has shape {array.shape}, the network needs {tuple(tensors[name].shape)}")
            tensors[name].copy_(torch.from_numpy(np.require(array, requirements=["C", "W"])))


def num_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of ``arrays`` in bytes, without names and headers."""
    return sum(array.nbytes for array in arrays.values())
