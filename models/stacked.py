"""Run many copies of a network at once: parameters and inputs have a leading axis, one entry for each copy.

Dense layers become batched matrix products, convolutions grouped ones, and LSTMs a loop over time; layers without
parameters treat the copies as more examples, or as more channels. Written out by hand, a step of a small network takes
half the time of ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, embedding

from florilegium.models.lstms import LastHidden

_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_NO_WEIGHTS = (*_ELEMENTWISE, *_POOLING, nn.Flatten)


@dataclass(frozen=True)
class StackedNetwork:
    """The layers of a network that can be run in many copies at once.

    Attributes:
        layers: its layers, first to last.
        places: for each layer, the places of its parameters in ``network.parameters()``.
        signature: equal for networks of the same layers and shapes, whatever their parameters contain.
    """

    layers: Sequence[nn.Module]
    places: Sequence[Sequence[int]]
    signature: Hashable

    def __call__(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs (N, b, …) of N copies.

        Args:
            parameters: in the order of ``network.parameters()``, each (N, *shape).
            x: the inputs of each copy, (N, b, *shape).
        """
        state = _Activations(x, len(x), pictures=False)
        for layer, places in zip(self.layers, self.places, strict=True):
            state = _apply(layer, [parameters[place] for place in places], state)
        return state.rows()


def stacked(network: nn.Module, *, gpu: bool = True) -> StackedNetwork | None:
    """Return ``network`` in a form that runs many copies at once; None if it has layers for which there is none.

    Layers whose output for one example depends on other examples (batch norm) or on chance (dropout) have none.

    Args:
        network: the network.
        gpu: whether it is for a GPU. On a CPU, copies with convolutions or LSTMs are faster one after the other.
    """
    layers = _leaves(network)
    if layers is None or not (gpu or not any(isinstance(layer, nn.Conv2d | LastHidden) for layer in layers)):
        return None
    return _form(tuple(layers))


@lru_cache(maxsize=16)  # every client asks for it; parts of the same network have the same layers
def _form(layers: tuple[nn.Module, ...]) -> StackedNetwork | None:
    if not all(_has_form(layer) for layer in layers):
        return None
    parameters = dict.fromkeys(parameter for layer in layers for parameter in layer.parameters())
    place = {id(parameter): index for index, parameter in enumerate(parameters)}
    places = [[place[id(parameter)] for parameter in layer.parameters()] for layer in layers]
    shapes = tuple(tuple(parameter.shape) for parameter in parameters)
    return StackedNetwork(layers, places, (tuple(map(repr, layers)), repr(places), shapes))


def _leaves(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of nested sequences in their order; None if a module does something else with its children."""
    if type(module).forward is nn.Sequential.forward and not (module._forward_hooks or module._forward_pre_hooks):
        parts = [_leaves(child) for child in module._modules.values() if child is not None]
        return None if None in parts else [layer for part in parts for layer in part or ()]
    return [module]


def _has_form(layer: nn.Module) -> bool:
    if layer._forward_hooks or layer._forward_pre_hooks or layer._parameters.keys() - {"weight", "bias"}:
        return False
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros"
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) is nn.Embedding:
        return layer.padding_idx is None and layer.max_norm is None and not (layer.scale_grad_by_freq or layer.sparse)
    return type(layer) in (nn.Linear, LastHidden, *_NO_WEIGHTS)


@dataclass(frozen=True)
class _Activations:
    """Outputs of a layer of N copies: (N, b, …), or as ``pictures`` (b, N·channels, height, width)."""

    values: Tensor
    copies: int
    pictures: bool

    def rows(self) -> Tensor:
        """Return them as (N, b, …)."""
        return self.values.unflatten(1, (self.copies, -1)).transpose(0, 1) if self.pictures else self.values

    def channels(self) -> Tensor:
        """Return them as (b, N·channels, height, width), for layers that treat copies as further channels."""
        return self.values if self.pictures else self.values.transpose(0, 1).flatten(1, 2)


def _apply(layer: nn.Module, parameters: Sequence[Tensor], given: _Activations) -> _Activations:
    copies = given.copies
    if isinstance(layer, nn.Linear):
        return _Activations(_dense(given.rows(), *parameters), copies, pictures=False)
    if isinstance(layer, nn.Embedding):
        first = layer.num_embeddings * torch.arange(copies, device=given.values.device)
        codes = given.values + first.view(-1, *[1] * (given.values.dim() - 1))
        return _Activations(embedding(codes, parameters[0].flatten(0, 1)), copies, pictures=False)
    if isinstance(layer, LastHidden):
        return _Activations(_last_hidden(given.values, parameters), copies, pictures=False)
    if isinstance(layer, nn.Flatten):
        rows = given.rows()
        return _Activations(rows.flatten(2) if rows.dim() > 3 else rows, copies, pictures=False)
    if isinstance(layer, nn.Conv2d):
        weight, *bias = (parameter.flatten(0, 1) for parameter in parameters)
        values = conv2d(
            given.channels(), weight, bias[0] if bias else None, layer.stride, layer.padding, layer.dilation,
            copies * layer.groups,
        )  # fmt: skip
        return _Activations(values, copies, pictures=True)
    if isinstance(layer, _POOLING):
        return _Activations(layer(given.channels()), copies, pictures=True)
    return _Activations(layer(given.values), copies, given.pictures)


def _dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b for x (N, b, …, inputs), W (N, outputs, inputs), b (N, outputs)."""
    rows, turned = x.flatten(1, -2), weight.transpose(1, 2)
    values = torch.bmm(rows, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, turned)
    return values if x.dim() == 3 else values.view(*x.shape[:-1], -1)


def _last_hidden(x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """Return the last output (N, b, hidden) of an LSTM for x (N, b, time, inputs).

    Args:
        x: inputs.
        parameters: for each layer, in PyTorch's order, W_ih (N, 4·hidden, inputs), W_hh (N, 4·hidden, hidden), b_ih and
            b_hh (N, 4·hidden), with rows for the gates i, f, g, o.
    """
    for layer in range(0, len(parameters), 4):
        w_ih, w_hh, b_ih, b_hh = parameters[layer : layer + 4]
        turned, given = w_hh.transpose(1, 2), _dense(x, w_ih, b_ih + b_hh)
        h = c = given.new_zeros(*given.shape[:2], w_hh.shape[2])
        outputs = []
        for step in given.unbind(dim=2):
            i, f, g, o = torch.baddbmm(step, h, turned).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        x = torch.stack(outputs, dim=2)
    return x[:, :, -1]
