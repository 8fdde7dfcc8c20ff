"""Copy named arrays into and out of a network: what training changes, which travels; what is frozen does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.common.blocks import blocks, squares
from florilegium.common.spool import zeros
from florilegium.models.frozen import Frozen

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, in the order of the network's ``state_dict``."""


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Return all tensors that make ``model``, by name: parameters and floating-point buffers, as a model's file has.

    A tensor with several names (tied weights) is returned once, under the first of them, as in ``named_parameters``.
    """
    once: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in _stored(model, ""):
        once.setdefault(id(tensor), (name, tensor))
    return {name: tensor for name, tensor in once.values() if tensor.is_floating_point() or _is_frozen(tensor)}


def exchanged(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of ``model`` that training changes, by name: trained parameters, and floating-point buffers.

    These are what is sent, averaged, and stored for each client. The others are :func:`frozen`, or integer buffers
    (batch norm's count of batches), which have no meaningful mean.
    """
    return {name: tensor.detach() for name, tensor in whole(model).items() if not _is_frozen(tensor)}


def frozen(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of ``model`` that training must not change (``requires_grad = False``), by name."""
    return {name: tensor.detach() for name, tensor in whole(model).items() if _is_frozen(tensor)}


def _is_frozen(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _stored(module: nn.Module, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of ``module.state_dict()`` by name, in a fifth of its time."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and name not in module._non_persistent_buffers_set:
            yield prefix + name, tensor
    for name, child in module._modules.items():
        if child is not None:
            yield from _stored(child, f"{prefix}{name}.")


def unexchanged(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of ``model`` that :func:`exchanged` does not contain, by name: counters, masks, caches."""
    sent = exchanged(model)
    return {name: buffer for name, buffer in model.named_buffers() if name not in sent}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of ``model`` that :func:`exchanged` contains, by name."""
    own = trained(model)
    return {name: tensor for name, tensor in exchanged(model).items() if name not in own}


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of ``model`` that training changes, by name: those that are not frozen."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def is_statistic(name: str) -> bool:
    """Return whether tensor ``name`` of :func:`exchanged` is a running statistic of batch norm, not a parameter."""
    return name.endswith(("running_mean", "running_var"))


def without_statistics(arrays: Arrays) -> Arrays:
    """Return ``arrays`` without running statistics of batch norm, which are no directions or places of learning."""
    return {name: array for name, array in arrays.items() if not is_statistic(name)}


def get_arrays(model: nn.Module) -> Arrays:
    """Return copies of the tensors of :func:`exchanged` as NumPy arrays.

    Of a finished model, in which nothing is left to train, such as one of a run's results: of all its tensors.
    """
    finished = not any(parameter.requires_grad for parameter in model.parameters())
    return arrays_of(whole(model) if finished else exchanged(model))


def arrays_of(tensors: Mapping[str, Tensor]) -> Arrays:
    """Return copies of tensors as NumPy arrays, by the same names."""
    plain = [tensor.detach() for tensor in tensors.values()]
    return dict(zip(tensors, _taken(plain, at_once=any(tensor.is_cuda for tensor in plain)), strict=True))


def parts_of(model: nn.Module, fixed: Arrays | None = None, own: Arrays | None = None) -> tuple[Arrays, Frozen]:
    """Return all tensors of :func:`whole`, and those of them that are frozen.

    Args:
        model: the network.
        fixed, own: its frozen parameters, and what training changes. Default: copies.
    """
    own = arrays_of(exchanged(model)) if own is None else own
    fixed = arrays_of(frozen(model)) if fixed is None else fixed
    both = own | fixed
    return {name: both[name] for name in whole(model)}, Frozen(fixed, frozenset(own))


def _taken(tensors: Sequence[Tensor], *, at_once: bool) -> list[NDArray[Any]]:
    """Return copies of tensors as arrays; ``at_once``: in one transfer, since those from a GPU take long to begin."""
    if not at_once:
        return [tensor.numpy().copy() for tensor in tensors]
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape).to(tensor.dtype).numpy() for part, tensor in zip(parts, tensors, strict=True)]


def _put(arrays: Sequence[NDArray[Any]], tensors: list[Tensor], *, at_once: bool) -> None:
    """Copy arrays into tensors of their shapes; ``at_once``: in one transfer."""
    if not at_once:
        for tensor, array in zip(tensors, arrays, strict=True):
            np.copyto(tensor.detach().numpy(), array)
        return
    flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays])).to(tensors[0].device)
    parts = flat.split([array.size for array in arrays])
    torch._foreach_copy_(tensors, [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)])


def set_arrays(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Copy ``arrays`` into the tensors of the same names, keeping each tensor's memory layout.

    Raises:
        ValueError: if the network has no tensor of an array's name, or it has another shape; the message names it.
    """
    tensors = []
    for name, array in arrays.items():
        tensor = _tensor(model, name)
        if tensor is None:
            raise ValueError(f"the network has no tensor '{name}'")
        if tensor.shape != array.shape:
            raise ValueError(f"'{name}' has shape {array.shape}, the network needs {tuple(tensor.shape)}")
        tensors.append(tensor)
    if tensors:
        with torch.no_grad():
            _put([*arrays.values()], tensors, at_once=tensors[0].is_cuda)


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


def shapes_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array, by name."""
    return {name: array.shape for name, array in arrays.items()}


def num_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of ``arrays`` in bytes, without names and headers."""
    return sum(array.nbytes for array in arrays.values())


def norm(arrays: Mapping[str, NDArray[Any]]) -> float:
    """Return the Euclidean norm over all entries of all arrays, in double precision."""
    return math.sqrt(sum(map(squares, arrays.values())))


def divide(total: NDArray[Any], weight: float) -> NDArray[Any]:
    """Return ``total`` ÷ ``weight``, in double precision in its own place."""
    if total.dtype != np.float64 or not total.flags.writeable:
        return total / weight
    return np.divide(total, weight, out=total)


def moved(start: NDArray[Any], step: NDArray[Any], rate: float | None = None) -> NDArray[Any]:
    """Return ``start`` + ``rate``·``step`` in the type of ``start``, computed a block at a time.

    Args:
        start, step: arrays of one shape.
        rate: None: 1.
    """
    new = np.empty(start.shape, start.dtype)
    for to, old, change in blocks(new, start, step):
        to[:] = old + (change if rate is None else rate * change)
    return new


def computed(function: Callable[..., NDArray[Any]], *arrays: Arrays) -> Arrays:
    """Return an elementwise function of arrays of the same shapes, from a block at a time; a large result in a file.

    Args:
        function: makes a block, (n,), of the blocks of the same entries of each; it keeps their type.
        arrays: arrays by name, each with the names of the last at least.
    """
    shapes = shapes_of(arrays[-1])
    kinds = {name: np.result_type(*(one[name] for one in arrays)) for name in shapes}
    result: Arrays = zeros(shapes, kinds)
    for name in shapes:
        for to, *parts in blocks(result[name], *(one[name] for one in arrays)):
            to[:] = function(*parts)
    return result


def distance(arrays: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]]) -> float:
    """Return the Euclidean norm of ``arrays`` − ``others`` over all entries of all arrays, in double precision.

    Args:
        arrays: arrays by name.
        others: arrays of the same shapes, by the same names; further ones are ignored.
    """
    total = 0.0
    for name, array in arrays.items():
        for one, other in blocks(array, others[name]):
            difference = one.astype(np.float64)
            difference -= other
            total += float(np.square(difference, out=difference).sum())
    return math.sqrt(total)
