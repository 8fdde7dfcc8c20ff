"""Sub-networks of smaller width: which entries of a network's arrays they have, and the narrow networks themselves.

A layer's axis of C channels keeps ⌈r·C⌉ of them at capacity r, consecutive ones from a start, around the end. Which
axes have channels follows from the order and the shapes of the layers: all but the network's inputs and outputs. So a
sub-network is the network that one would have built with fewer channels, and :func:`check` shows that it computes what
the whole network computes with all other entries at zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.models.parameters import Arrays, get_arrays, is_statistic, set_arrays, whole

Convolution = nn.modules.conv._ConvNd
Norm = nn.modules.batchnorm._BatchNorm
_TOLERANCE = 1e-4
"""Largest difference between outputs that count as equal, relative to the largest output."""


@dataclass(frozen=True)
class Axis:
    """An axis of an array that holds channels.

    Attributes:
        channels: number C of channels.
        inner: entries of one channel next to each other, such as the pixels of a flattened image.
        outer: how many times the list of channels stands there, such as for the gates of an LSTM.
    """

    channels: int
    inner: int = 1
    outer: int = 1

    def kept(self, capacity: float, start: int) -> NDArray[np.intp]:
        """Return the positions that a sub-network of capacity r keeps: ⌈r·C⌉ channels from ``start`` mod C on."""
        count = math.ceil(capacity * self.channels)
        chosen = np.sort((start + np.arange(count)) % self.channels)  # in order, so that capacity 1 is the network
        blocks = np.arange(self.outer)[:, None, None] * self.channels + chosen[:, None]
        return (blocks * self.inner + np.arange(self.inner)).ravel()


Axes = tuple[Axis | None, ...]
"""The axes of an array, first to last; None: all of it is kept."""
Entries = Mapping[str, tuple[NDArray[np.intp], ...]]
"""For each array the index, as of ``np.ix_``, of the entries that a sub-network has."""


def layers_with_arrays(network: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a network that have arrays of their own, by name, first to last."""
    owners = dict.fromkeys(name.rpartition(".")[0] for name in whole(network))
    return {name: network.get_submodule(name) for name in owners}


def axes_of(network: nn.Module) -> dict[str, Axes]:
    """Return the axes of every array of a network, by name.

    Raises:
        ValueError: if a layer cannot be made narrower; the message continues a sentence about the network.
    """
    layers = layers_with_arrays(network)
    last = [*layers][-1]
    found: dict[str, Axes] = {}
    before: Axis | None = None  # the channels that the layer before gives
    for name, layer in layers.items():
        before, own = _axes(layer, before, outputs=name == last)
        if not own:
            raise ValueError(
                f"has the layer '{name}' of type {type(layer).__name__}, which cannot be made narrower here"
            )
        found |= {f"{name}.{array}".removeprefix("."): axes for array, axes in own.items()}
    if not any(axis for axes in found.values() for axis in axes):
        raise ValueError("has no channels between its layers that a sub-network could do without")
    return found


def _axes(layer: nn.Module, before: Axis | None, *, outputs: bool) -> tuple[Axis | None, dict[str, Axes]]:
    """Return the channels that a layer gives, and the axes of its arrays; no axes if it cannot be made narrower.

    Args:
        layer: a layer with arrays of its own.
        before: the channels that the layer before gives; None if this layer takes the network's inputs.
        outputs: whether the layer gives the network's outputs.
    """
    own = {name: tensor.dim() for name, tensor in whole(layer).items() if "." not in name}
    if isinstance(layer, nn.Linear) or (isinstance(layer, Convolution) and not _special(layer)):
        rows, columns = layer.weight.shape[:2]
        given = None if outputs else Axis(rows)
        taken = None if before is None else Axis(columns)
        if isinstance(layer, nn.Linear) and before is not None and columns % before.channels == 0:
            taken = Axis(before.channels, columns // before.channels)  # images were flattened
        return given, {"weight": (given, taken, *[None] * (own["weight"] - 2))} | (
            {"bias": (given,)} if "bias" in own else {}
        )
    if isinstance(layer, Norm) and before is not None and not outputs:
        given = Axis(layer.num_features)
        return given, dict.fromkeys(own, (given,))
    if isinstance(layer, nn.Embedding):
        given = Axis(layer.embedding_dim)
        return given, {"weight": (None, given)}
    if isinstance(layer, nn.RNNBase) and not (layer.bidirectional or layer.proj_size or outputs):
        given = Axis(layer.hidden_size)
        gates = Axis(given.channels, outer=whole(layer)["weight_hh_l0"].shape[0] // given.channels)
        first = None if before is None else Axis(layer.input_size)
        return given, {n: (gates, first if n == "weight_ih_l0" else given)[:dim] for n, dim in own.items()}
    return None, {}


def _special(layer: Convolution) -> bool:
    return layer.groups != 1 or layer.transposed


def entries(axes: Mapping[str, Axes], shapes: Mapping[str, Sequence[int]], capacity: float, start: int = 0) -> Entries:
    """Return which entries of each array a sub-network has.

    Args:
        axes: those of the network's arrays (:func:`axes_of`).
        shapes: the shapes of the network's arrays.
        capacity: r, the share of every layer's channels, in (0, 1].
        start: the first channel of every layer, modulo its number of channels.
    """
    return {
        name: np.ix_(
            *(
                np.arange(length) if axis is None else axis.kept(capacity, start)
                for axis, length in zip(own, shapes[name], strict=True)
            )
        )
        for name, own in axes.items()
    }


def shapes_at(network: nn.Module, capacity: float) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a sub-network's arrays.

    Raises:
        ValueError: as :func:`axes_of`.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in whole(network).items()}
    chosen = entries(axes_of(network), shapes, capacity)
    return {name: tuple(positions.size for positions in index) for name, index in chosen.items()}


def narrowed(network: nn.Module, shapes: Mapping[str, Sequence[int]]) -> nn.Module:
    """Return a copy of a network whose arrays have other shapes; their contents are not set.

    Args:
        network: the network, which is not copied as a whole.
        shapes: the shapes of all its arrays.

    Raises:
        ValueError: if names or numbers of axes differ, or an array would be larger than the network's.
    """
    names = whole(network).keys()
    if shapes.keys() != names:
        raise ValueError(f"other arrays than the network's: {', '.join(sorted(shapes.keys() ^ names))}")
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    memo: dict[int, object] = {}
    for name, shape in shapes.items():
        tensor = named[name]
        if len(shape) != tensor.dim() or any(length > most for length, most in zip(shape, tensor.shape, strict=True)):
            raise ValueError(f"'{name}' has shape {tuple(shape)}, the network's is {tuple(tensor.shape)}")
        memo[id(tensor)] = _resized(tensor, shape)
    small = copy.deepcopy(network, memo)
    for layer in layers_with_arrays(small).values():
        for attribute, length in _lengths(layer).items():
            setattr(layer, attribute, length)
    return small


def _lengths(layer: nn.Module) -> dict[str, int]:
    """Return the attributes of a layer that say how large its arrays are, with what the arrays are."""
    if isinstance(layer, Convolution):
        return dict(zip(("out_channels", "in_channels"), layer.weight.shape, strict=False))
    if isinstance(layer, nn.Linear):
        return dict(zip(("out_features", "in_features"), layer.weight.shape, strict=True))
    if isinstance(layer, nn.RNNBase):
        weights = whole(layer)
        return {"input_size": weights["weight_ih_l0"].shape[1], "hidden_size": weights["weight_hh_l0"].shape[1]}
    if isinstance(layer, nn.Embedding):
        return {"embedding_dim": layer.weight.shape[1]}
    return {"num_features": len(next(iter(whole(layer).values())))} if isinstance(layer, Norm) else {}


def _resized(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a parameter or buffer of another shape, in the layout of ``tensor``."""
    images = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if images else torch.contiguous_format
    made = torch.empty(tuple(shape), dtype=tensor.dtype, device=tensor.device, memory_format=layout).zero_()
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def taken(arrays: Mapping[str, NDArray[np.generic]], chosen: Entries) -> Arrays:
    """Return the entries of ``arrays`` that a sub-network has."""
    return {name: arrays[name][index] for name, index in chosen.items()}


@torch.no_grad()
def check(network: nn.Module, x: Tensor, chosen: Entries) -> None:
    """Check that a sub-network computes what the whole network computes with all other entries at zero.

    Args:
        network: the whole network; it is left unchanged.
        x: a batch of inputs.
        chosen: the entries of the sub-network.

    Raises:
        ValueError: if it does not; the message continues a sentence about the network.
    """
    rng = np.random.default_rng(0)
    shifted = {  # layers that start at zero would hide differences
        name: array if is_statistic(name) else array + 0.1 * (rng.random(array.shape, np.float32) - 0.5)
        for name, array in get_arrays(network).items()
    }
    small = narrowed(network, {name: shifted[name][index].shape for name, index in chosen.items()})
    set_arrays(small, taken(shifted, chosen))
    reference = copy.deepcopy(network)
    for name, index in chosen.items():
        rest = np.ones(shifted[name].shape, dtype=bool)
        rest[index] = False
        shifted[name][rest] = 1.0 if name.endswith("running_var") else 0.0
    set_arrays(reference, shifted)
    try:
        found = small.eval()(x)
    except RuntimeError as error:
        raise ValueError(f"has layers that do not fit together when they are narrower: {error}") from error
    expected = reference.eval()(x)
    if found.shape != expected.shape or not (found - expected).abs().max() <= _TOLERANCE * expected.abs().max():
        raise ValueError("does not compute the same from a sub-network as with all other entries at zero")


def amplify(network: nn.Module, factor: float) -> None:
    """Multiply the outputs of all convolutions and dense layers of a network by ``factor``, but for the last layer.

    HeteroFL's scaler (Diao et al. 2021, section 3.2): with 1/r, activations have the scale of the whole network's.
    """
    for layer in _hidden(network):
        layer.register_forward_hook(lambda layer, inputs, outputs: outputs * factor)


@torch.no_grad()
def absorb(network: nn.Module, factor: float) -> None:
    """Undo :func:`amplify`, and multiply the layers' parameters instead, so that the network computes the same."""
    for layer in _hidden(network):
        layer._forward_hooks.clear()
        for parameter in layer.parameters(recurse=False):
            parameter.mul_(factor)


def _hidden(network: nn.Module) -> list[nn.Module]:
    layers = [*layers_with_arrays(network).values()]
    return [layer for layer in layers[:-1] if isinstance(layer, Convolution | nn.Linear)]
