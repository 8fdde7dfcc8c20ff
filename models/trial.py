"""Try out what a run does with a network of another package: evaluate twice, share among clients, average, copy, open.

Errors are ``ValueError`` whose message continues a sentence about the network, as those of the dry run; so do remarks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_generator
from florilegium.models.dry_run import outputs, undisturbed
from florilegium.models.parameters import buffers_of, is_statistic, whole

_PASSES = 3
"""Passes in training mode after which buffers are compared."""
_SCALES = (1.0, -10.0, 100.0)
"""Factors of the inputs for which outputs are compared with probabilities."""
_SLIGHT = 0.1
"""Width of random changes of parameters for which outputs stay of their kind."""
_NEAR = 1e-4
"""Largest difference of what counts as equal, relative to the largest entry."""


@dataclass(frozen=True)
class Found:
    """What has been found of a network that can be trained.

    Attributes:
        remarks: what a user should know in any case, in sentences about the network.
        activation: "softmax" if outputs are distributions, "sigmoid" if they are single probabilities, "" otherwise.
        directions: buffers of length 1 that training turns, of which no mean is one.
        changing: other buffers of numbers that training changes, without batch norm's statistics.
    """

    remarks: tuple[str, ...] = ()
    activation: Literal["", "softmax", "sigmoid"] = ""
    directions: tuple[str, ...] = ()
    changing: tuple[str, ...] = ()

    def said(self, *, logits: bool, averaged: bool) -> list[str]:
        """Return the remarks for a run, in sentences about the network.

        Args:
            logits: whether the run's loss takes outputs for logits.
            averaged: whether its buffers become means over clients.

        Raises:
            ValueError: if they do, and are directions.
        """
        if averaged and self.directions:
            raise ValueError(
                f"has buffers of length 1 that training turns ('{self.directions[0]}'), as spectral normalisation has. "
                "The mean of clients' is shorter, so that the averaged layer would be several times too large; set "
                "buffers = 'recompute', or use weight normalisation "
                "(torch.nn.utils.parametrizations.weight_norm) or max-grad-norm"
            )
        found = [*self.remarks]
        if logits and self.activation:
            found.append(
                "returns probabilities, which the loss takes for logits, so that training is slow and losses stay "
                f"high; leave out the {self.activation} at its end"
            )
        if averaged and self.changing:
            found.append(
                "has buffers that training changes and that are averaged over clients "
                f"({', '.join(self.changing[:5])}); right for running means, but not for ranges, masks or codebooks, "
                "which keep their meaning with buffers = 'first' or 'recompute'"
            )
        return found


def tried(network: nn.Module, x: Tensor) -> Found:
    """Try out what a run does with a network that can be trained.

    Args:
        network: the network, which is left as it was.
        x: a batch of inputs.

    Raises:
        ValueError: if clients that share the network would disturb each other, or a trained network cannot be copied,
            as it is when it is opened.
    """
    with undisturbed(network):
        remarks = tuple(_random(network, x))
        if not remarks:
            remarks = tuple(_mixed(network, x))
            _check_restored(network, x)
        directions, changing = _turned(network, x)
        found = Found(remarks, _activation(network, x), directions, changing)
        _check_copied(network, x)
    return found


def check_opened(network: nn.Module, again: nn.Module, x: Tensor) -> None:
    """Check that a finished network can be opened: built anew, with its parameters and buffers put back.

    Args:
        network: the network, which is left as it was.
        again: one that has been built anew, with other random draws.
        x: a batch of inputs.

    Raises:
        ValueError: if the two have other parameters or buffers, or with the same ones compute something else.
    """
    own, other = whole(network), whole(again)
    shapes, others = ({name: tuple(tensor.shape) for name, tensor in of.items()} for of in (own, other))
    if wrong := sorted(name for name in shapes.keys() | others.keys() if shapes.get(name) != others.get(name)):
        name = wrong[0]
        raise ValueError(
            f"is another one each time it is built ('{name}' has shape {shapes.get(name, 'none')}, then "
            f"{others.get(name, 'none')}), so that no model could be opened; let names and shapes follow from the "
            "arguments of its function alone"
        )
    x = x.clone(memory_format=torch.contiguous_format)  # both as they are, without what adapts them to the suite
    with undisturbed(network), torch.no_grad():
        _shift(network, 0, _SLIGHT)  # a last layer of zeros would hide differences
        for name, tensor in own.items():
            other[name].copy_(tensor)
        found, opened = _evaluated(network, x), _evaluated(again, x)
        same = _same(found, opened) or not found.isfinite().all()
    if not same:
        raise ValueError(
            "computes something else when it is built anew and its parameters and buffers are put back, as a finished "
            "model is when it is opened: it draws what no file holds; make that a buffer of floating-point numbers "
            "with register_buffer, and convert it where it is used, or draw it from a fixed seed"
        )


def _evaluated(network: nn.Module, x: Tensor, draw: int = 0) -> Tensor:
    return outputs(network, x, training=False, draw=draw)


def _random(network: nn.Module, x: Tensor) -> Iterator[str]:
    """Yield a sentence if outputs in evaluation mode depend on random draws."""
    if not _same(*(_evaluated(network, x, draw) for draw in range(2))):
        yield (
            "draws at random in evaluation mode, so that tests and predictions differ each time; use nn.Dropout, or "
            "pass training=self.training to functional.dropout"
        )


def _mixed(network: nn.Module, x: Tensor) -> Iterator[str]:
    """Yield a sentence if in evaluation mode the outputs of an input depend on the other inputs of its batch."""
    try:
        same = _same(_evaluated(network, x), torch.cat([_evaluated(network, x[:1]), _evaluated(network, x[1:])]))
    except Exception:  # batch norm without running statistics refuses a single input
        same = False
    if not same:
        yield (
            "computes something else for an input beside others in evaluation mode, so that figures depend on batches, "
            "and predictions for single inputs differ or fail; use batch norm with running statistics "
            "(track_running_stats=True), layer norm or group norm"
        )


def _check_restored(network: nn.Module, x: Tensor) -> None:
    """Check that parameters and buffers are all of the network's state: it computes for one client after the other."""
    before = _evaluated(network, x)
    with undisturbed(network):
        for training in (True, False):
            outputs(network, _other(x), training=training)
    if not _same(before, _evaluated(network, x)):
        raise ValueError(
            "keeps something of earlier inputs outside of its parameters and buffers, which would leak from client to "
            "client, and is lost when the model is saved; make it a buffer with register_buffer, or leave it out"
        )


def _activation(network: nn.Module, x: Tensor) -> Literal["", "softmax", "sigmoid"]:
    """Return what a network seems to end with, "" if outputs are no probabilities."""
    inputs = [x * scale for scale in _SCALES] if x.is_floating_point() else [x, _other(x)]
    found = [_evaluated(network, one) for one in inputs]
    if found[0].shape[1] > 1 and all((y >= 0).all() and ((y.sum(dim=1) - 1).abs() <= _NEAR).all() for y in found):
        return "softmax"
    with undisturbed(network):
        if _shares(found):
            _shift(network, 0, _SLIGHT)  # a last layer of zeros has such outputs at first
        return "sigmoid" if _shares([*found, *(_evaluated(network, one) for one in inputs)]) else ""


def _shares(found: Sequence[Tensor]) -> bool:
    return all((y >= 0).all() and (y <= 1).all() for y in found)


def _turned(network: nn.Module, x: Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of buffers of numbers that training changes: those of length 1, which it turns, and others."""
    named = {name: buffer for name, buffer in buffers_of(network).items() if not is_statistic(name)}
    if not named:
        return (), ()
    ends = []
    for draw, inputs in enumerate((x, _other(x))):
        with undisturbed(network):
            _shift(network, draw)  # as training would change parameters; some buffers follow weights
            for number in range(_PASSES):
                outputs(network, inputs, training=True, draw=number)
            ends.append({name: buffer.detach().clone() for name, buffer in named.items()})
    changed = [name for name, buffer in named.items() if any(not _same(buffer, end[name]) for end in ends)]
    lengths = {name: [float(one.norm()) for one in (named[name], *(end[name] for end in ends))] for name in changed}
    directions = [
        name for name in changed if named[name].numel() > 1 and all(abs(length - 1) < 1e-3 for length in lengths[name])
    ]
    return tuple(directions), tuple(name for name in changed if name not in directions)


def _shift(network: nn.Module, draw: int, width: float = 1.0) -> None:
    """Change all parameters at random, by up to half of ``width``."""
    generator = torch_generator(0, "dry run", "trained copies", draw)
    for parameter in network.parameters():
        change = torch.empty_like(parameter.data)
        parameter.data.add_(change.uniform_(-0.5, 0.5, generator=generator), alpha=width)


def _check_copied(network: nn.Module, x: Tensor) -> None:
    """Check that a network that has been trained can be copied, as it is when it is opened, and by some methods."""
    outputs(network, x, training=True)
    tensors = [*network.parameters(), *network.buffers()]
    try:
        copy.deepcopy(network, {id(tensor): tensor for tensor in tensors})  # the tensors themselves are not copied
    except Exception as error:  # the code of another package may raise anything
        raise ValueError(
            f"cannot be copied once it has been trained ({type(error).__name__}: {str(error).split('. ')[0]}), so that "
            "no model could be opened; of layers whose weight is computed before each pass use "
            "torch.nn.utils.parametrizations instead of hooks, and keep no computed tensors in attributes"
        ) from error


def _other(x: Tensor) -> Tensor:
    """Return other inputs of the same kind."""
    return 2 * x.flip(0) + 1 if x.is_floating_point() else x.flip(0, -1)


def _same(first: Tensor, second: Tensor) -> bool:
    return bool(((first - second).abs() <= _NEAR * first.abs().max().clamp(min=1e-12)).all())
