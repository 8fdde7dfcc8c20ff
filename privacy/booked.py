"""Clipped sums of the gradients of single examples, for networks of dense and convolutional layers.

The gradient of a layer is a product of what the layer received and of the gradient of its outputs. One backward pass,
in which no parameter's gradient is computed, notes both for each example; norms and the clipped sum follow from them
(Bu et al. 2023, "Differentially private optimization on large model at small cost"). Opacus computes each example's
gradient of each parameter, or takes a second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from florilegium.common.errors import RunError
from florilegium.privacy.example_gradients import ExampleGradients, clipped

Clipped = list[tuple[nn.Parameter, Tensor]]
Notes = list[tuple[Tensor, Tensor]]
"""Inputs of a layer and the gradients of its outputs, for each call."""


def supported(model: nn.Module) -> bool:
    """Return whether each trained parameter belongs to one plain dense or convolutional layer.

    Others, such as layers of attention, use the parameters of layers without calling them. Buffers of whole numbers, as
    positions are, are never changed; other buffers may be statistics, to which examples add up.
    """
    layers = _layers(model)
    trained = [id(parameter) for layer in layers for parameter in _trained(layer)]
    return (
        all(type(layer) is nn.Linear or (type(layer) is nn.Conv2d and _is_plain(layer)) for layer in layers)
        and len(set(trained)) == len(trained) > 0
        and not any(buffer.is_floating_point() for buffer in model.buffers())
    )


def _is_plain(layer: nn.Conv2d) -> bool:
    return layer.groups == 1 and layer.padding_mode == "zeros" and isinstance(layer.padding, tuple)


def _layers(model: nn.Module) -> list[nn.Module]:
    return [layer for layer in model.modules() if _trained(layer)]  # each once, also if it has several names


def _trained(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]


class Booked:
    """The notes of a network's layers.

    Args:
        model: a :func:`supported` network; :meth:`end` makes it an ordinary one again.
        longest: the norm C > 0 to which gradients are clipped.
    """

    def __init__(self, model: nn.Module, longest: float) -> None:
        self._longest = longest
        self._notes: dict[nn.Module, Notes] = {layer: [] for layer in _layers(model)}
        for layer, notes in self._notes.items():
            layer.forward = _noting(layer, notes)

    def forget(self) -> None:
        """Delete all notes."""
        for notes in self._notes.values():
            notes.clear()

    def end(self) -> None:
        """Make the network an ordinary one again."""
        for layer in self._notes:
            vars(layer).pop("forward", None)

    @torch.no_grad()
    def clipped(self, count: int) -> tuple[Tensor, Clipped]:
        """Return the norms of the examples' gradients (b,), and the sum of the clipped ones for each parameter.

        The gradient of an example that is not finite counts as zero.

        Args:
            count: the number b of examples.

        Raises:
            RunError: if a layer received more or fewer rows, so that they are no examples.
        """
        layers = [layer for layer, notes in self._notes.items() if notes]
        found = [_gradients(layer, self._notes[layer]) for layer in layers]
        if wrong := [rows for one in found if (rows := len(one.received)) != count]:
            raise RunError(f"a layer of the network received {wrong[0]} rows of {count} examples; each needs one")
        if not found:
            return torch.zeros(count), []
        norms, sums = clipped(found, self._longest)
        return norms, [pair for layer, own in zip(layers, sums, strict=True) for pair in _of_parameters(layer, own)]


def _gradients(layer: nn.Module, notes: Notes) -> ExampleGradients:
    """Return the gradients of examples that follow from a layer's notes, at least one.

    They have the parameters' precision, also where the layer computed in bfloat16: norms and sums must agree, so that
    no clipped gradient is longer than C.
    """
    patches = _patches if isinstance(layer, nn.Conv2d) else _entries
    kind = _trained(layer)[0].dtype
    received, returned = zip(*(patches(layer, x.to(kind), g.to(kind)) for x, g in notes), strict=True)
    trained = {id(parameter) for parameter in _trained(layer)}
    return ExampleGradients(
        _joined(received), _joined(returned), id(layer.weight) in trained, id(layer.bias) in trained
    )


def _of_parameters(layer: nn.Module, sums: Sequence[Tensor]) -> Clipped:
    """Return a layer's trained parameters, each with its sum in its own shape."""
    return [(parameter, _shaped(parameter, own)) for parameter, own in zip(_trained(layer), sums, strict=True)]


def _shaped(parameter: nn.Parameter, own: Tensor) -> Tensor:
    if parameter.dim() != 4:
        return own
    outputs, channels, height, width = parameter.shape  # patches end with their channels
    return own.view(outputs, height, width, channels).permute(0, 3, 1, 2)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat([*parts], dim=1)


def _entries(layer: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs and gradients of outputs of a dense layer by positions, (b, T, k) and (b, T, o)."""
    return x.reshape(len(x), -1, x.shape[-1]), g.reshape(len(g), -1, g.shape[-1])


def _patches(layer: Any, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the patches of a convolution's inputs and gradients of its outputs, (b, T, k) and (b, T, o)."""
    (down, right), (tall, wide) = layer.padding, layer.kernel_size
    x = functional.pad(x, (right, right, down, down)) if down or right else x
    rows = x.permute(0, 2, 3, 1).contiguous()
    batch, vertical, horizontal, channel = rows.stride()
    steps = (layer.stride[0] * vertical, layer.stride[1] * horizontal)
    inner = (layer.dilation[0] * vertical, layer.dilation[1] * horizontal)
    shape = (len(x), *g.shape[2:], tall, wide, x.shape[1])
    patches = rows.as_strided(shape, (batch, *steps, *inner, channel)).reshape(len(x), g.shape[2] * g.shape[3], -1)
    return patches, g.permute(0, 2, 3, 1).reshape(len(g), -1, g.shape[1])


def _noting(layer: Any, notes: Notes) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        outputs: Tensor = _Noting.apply(x, layer.weight, layer.bias, layer, notes)
        return outputs

    return forward


class _Noting(torch.autograd.Function):
    """A layer whose backward pass notes inputs and gradients of outputs, and gives the parameters no gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Any, notes: Notes) -> Tensor:
        """Return the layer's outputs."""
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.notes = layer, notes
        if isinstance(layer, nn.Linear):
            return functional.linear(x, weight, bias)
        return functional.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        """Return the gradient of the inputs, if it is needed."""
        (x, weight), layer = ctx.saved_tensors, ctx.layer
        ctx.notes.append((x, g))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        weight = weight.to(g.dtype)  # with autocast, outputs are in bfloat16
        if isinstance(layer, nn.Linear):
            return (g @ weight).to(x.dtype), None, None, None, None
        sizes = (list(layer.stride), list(layer.padding), list(layer.dilation), False, [0, 0], 1)
        convolution = torch.ops.aten.convolution_backward
        inputs = convolution(g, x.to(g.dtype), weight, None, *sizes, (True, False, False))[0]
        return inputs.to(x.dtype), None, None, None, None
