"""Run many copies of a network at once: parameters and inputs have a leading axis, one entry for each copy.

Dense layers become batched matrix products, convolutions grouped ones, and LSTMs a loop over time; layers without
parameters treat the copies as more examples, or as more channels, and so does batch norm. Written out by hand, a step
of a small network takes half the time of ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, embedding

from florilegium.models.batch_norm import Norm
from florilegium.models.lstms import LastHidden
from florilegium.models.stacked_norms import Norms, has_form, normalised

_ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity)
_POOLING = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_NO_WEIGHTS = (*_ELEMENTWISE, *_POOLING, nn.Flatten)
_RESIDUAL = {
    "torchvision.models.resnet.BasicBlock": ("conv1", "bn1", "relu", "conv2", "bn2"),
    "torchvision.models.resnet.Bottleneck": ("conv1", "bn1", "relu", "conv2", "bn2", "relu", "conv3", "bn3"),
}
"""Layers of the main path of residual blocks, by the name of their class: importing the class would take long."""


class _Step(nn.Module):
    """A step between the layers of a residual block."""


_FORK, _OTHER, _JOIN = _Step(), _Step(), _Step()
"""Keep the activations for the other path; go on with those kept, and keep the present ones; add those kept."""


class Note(NamedTuple):
    """What a dense layer of N copies received and returned in a pass.

    Attributes:
        places: the places of its parameters in ``network.parameters()``: weight, and bias if it has one.
        received: its inputs (N, b, …, k).
        outputs: its outputs (N, b, …, o).
    """

    places: Sequence[int]
    received: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class StackedNetwork:
    """The layers of a network that can be run in many copies at once.

    Attributes:
        layers: its layers, first to last.
        places: for each layer, the places of its parameters in ``network.parameters()``.
        buffers: for each layer, the places of its buffers in ``network.buffers()``; only batch norm has some.
        signature: equal for networks of the same layers and shapes, whatever their parameters contain.
    """

    layers: Sequence[nn.Module]
    places: Sequence[Sequence[int]]
    buffers: Sequence[Sequence[int]]
    signature: Hashable

    def __call__(
        self, parameters: Sequence[Tensor], x: Tensor, norms: Norms | None = None, notes: list[Note] | None = None
    ) -> Tensor:
        """Return the outputs (N, b, …) of N copies.

        Args:
            parameters: in the order of ``network.parameters()``, each (N, *shape).
            x: the inputs of each copy, (N, b, *shape).
            norms: what batch norm needs, if the network has any.
            notes: if given, what each dense layer received and returned is added to it.
        """
        state, kept = _Activations(x, len(x), pictures=False), list[_Activations]()
        for layer, places, own in zip(self.layers, self.places, self.buffers, strict=True):
            if layer is _FORK:
                kept.append(state)
            elif layer is _OTHER:
                kept[-1], state = state, kept[-1]
            elif layer is _JOIN:
                state = state.plus(kept.pop())
            elif isinstance(layer, Norm):
                assert norms is not None
                given, buffers = [parameters[place] for place in places], [norms.buffers[place] for place in own]
                values = normalised(layer, given, buffers, state.channels(), norms)
                state = _Activations(values, len(x), pictures=True)
            else:
                received, state = state, _apply(layer, [parameters[place] for place in places], state)
                if notes is not None and isinstance(layer, nn.Linear):
                    notes.append(Note(places, received.rows(), state.values))
        return state.rows()

    @property
    def has_norms(self) -> bool:
        """Whether the network has batch norm."""
        return any(self.buffers)


def stacked(network: nn.Module, *, gpu: bool = True, norms: bool = False) -> StackedNetwork | None:
    """Return ``network`` in a form that runs many copies at once; None if it has layers for which there is none.

    Layers whose output depends on chance (dropout) have none.

    Args:
        network: the network.
        gpu: whether it is for a GPU. On a CPU, copies with convolutions or LSTMs are faster one after the other.
        norms: whether the caller gives what batch norm needs, which has no form without.
    """
    layers = _leaves(network)
    if layers is None or not (gpu or not any(isinstance(layer, nn.Conv2d | LastHidden) for layer in layers)):
        return None
    form = _form(tuple(layers))
    return None if form is None or (form.has_norms and not norms) else form


@lru_cache(maxsize=16)  # every client asks for it; parts of the same network have the same layers
def _form(layers: tuple[nn.Module, ...]) -> StackedNetwork | None:
    if not all(_has_form(layer) for layer in layers):
        return None
    places = _places([[*layer.parameters()] for layer in layers])
    buffers = _places([[*layer.buffers()] for layer in layers])
    shapes = tuple(tuple(tensor.shape) for layer in layers for tensor in (*layer.parameters(), *layer.buffers()))
    steps = tuple("step" if isinstance(layer, _Step) else repr(layer) for layer in layers)
    return StackedNetwork(layers, places, buffers, (steps, repr(places), repr(buffers), shapes))


def _places(tensors: Sequence[Sequence[Tensor]]) -> list[list[int]]:
    """Return the place of each layer's tensors among all different ones."""
    place = {id(one): index for index, one in enumerate(dict.fromkeys(each for own in tensors for each in own))}
    return [[place[id(one)] for one in own] for own in tensors]


def _leaves(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of nested sequences and residual blocks in their order, with the steps between them.

    None if a module does something else with its children.
    """
    if module._forward_hooks or module._forward_pre_hooks:
        return [module]
    if type(module).forward is nn.Sequential.forward:
        return _joined([_leaves(child) for child in module._modules.values() if child is not None])
    if (main := _RESIDUAL.get(f"{type(module).__module__}.{type(module).__qualname__}")) is not None:
        layers = {name: child for name, child in module._modules.items() if child is not None}
        other = _leaves(layers["downsample"]) if "downsample" in layers else []
        return _joined([[_FORK], [layers[name] for name in main], [_OTHER], other, [_JOIN], [layers["relu"]]])
    return [module]


def _joined(parts: Sequence[list[nn.Module] | None]) -> list[nn.Module] | None:
    return None if None in parts else [layer for part in parts for layer in part or ()]


def _has_form(layer: nn.Module) -> bool:
    if layer._forward_hooks or layer._forward_pre_hooks or layer._parameters.keys() - {"weight", "bias"}:
        return False
    if isinstance(layer, Norm):
        return has_form(layer)
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros"
    if type(layer) is nn.Flatten:
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if type(layer) is nn.Embedding:
        return layer.padding_idx is None and layer.max_norm is None and not (layer.scale_grad_by_freq or layer.sparse)
    return type(layer) in (nn.Linear, LastHidden, _Step, *_NO_WEIGHTS)


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

    def plus(self, other: _Activations) -> _Activations:
        """Return the sum of both."""
        if self.pictures or other.pictures:
            return _Activations(self.channels() + other.channels(), self.copies, pictures=True)
        return _Activations(self.values + other.values, self.copies, pictures=False)


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
