"""Try out what a run does with a network of another package: evaluate it twice, share it among clients, average, copy.

Errors are ``ValueError`` whose message continues a sentence about the network, as those of the dry run; so do remarks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_generator
from florilegium.models.dry_run import outputs, undisturbed
from florilegium.models.parameters import exchanged, is_statistic

_PASSES = 3
"""Passes in training mode after which buffers are compared."""
_SCALES = (1.0, -10.0, 100.0)
"""Factors of the inputs for which outputs are compared with probabilities."""
_NEAR = 1e-4
"""Largest difference of what counts as equal, relative to the largest entry."""


def remarks_on(network: nn.Module, x: Tensor) -> list[str]:
    """Return what a user should know of a network that can be trained, in sentences about it.

    Args:
        network: the network, which is left as it was.
        x: a batch of inputs.

    Raises:
        ValueError: if clients that share the network would disturb each other, the mean of clients' networks would be
            none, or a trained network cannot be copied, as it is when it is opened.
    """
    with undisturbed(network):
        found = [*_random(network, x)]
        if not found:
            _check_restored(network, x)
        found += [*_probabilities(network, x), *_averaged(network, x)]
        _check_copied(network, x)
    return found


def _evaluated(network: nn.Module, x: Tensor, draw: int = 0) -> Tensor:
    return outputs(network, x, training=False, draw=draw)


def _random(network: nn.Module, x: Tensor) -> Iterator[str]:
    """Yield a sentence if outputs in evaluation mode depend on random draws."""
    if not _same(*(_evaluated(network, x, draw) for draw in range(2))):
        yield (
            "draws at random in evaluation mode, so that tests and predictions differ each time; use nn.Dropout, or "
            "pass training=self.training to functional.dropout"
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


def _probabilities(network: nn.Module, x: Tensor) -> Iterator[str]:
    """Yield a sentence if all outputs are probabilities, which losses of logits need not be given."""
    if not x.is_floating_point():
        found = [_evaluated(network, x), _evaluated(network, _other(x))]
    else:
        found = [_evaluated(network, x * scale) for scale in _SCALES]
    if found[0].shape[1] > 1 and all((y >= 0).all() and ((y.sum(dim=1) - 1).abs() <= _NEAR).all() for y in found):
        yield (
            "returns probabilities, which the cross-entropy takes for logits, so that training is slow and losses stay "
            "high; leave out the softmax at its end"
        )


def _averaged(network: nn.Module, x: Tensor) -> Iterator[str]:
    """Yield a sentence on buffers of numbers that training changes and clients' mean may not preserve.

    Raises:
        ValueError: if some are directions, vectors of length 1, whose mean is shorter.
    """
    own = {id(parameter) for parameter in network.parameters()}
    names = [name for name, tensor in exchanged(network).items() if not is_statistic(name)]
    named = {name: tensor for name, tensor in network.named_buffers() if name in names and id(tensor) not in own}
    if not named:
        return
    ends, generator = [], torch_generator(0, "dry run", "trained copies")
    for inputs in (x, _other(x)):
        with undisturbed(network):
            for parameter in network.parameters():  # as training would change them; some buffers follow weights
                parameter.data.add_(torch.rand(parameter.shape, generator=generator) - 0.5)
            for number in range(_PASSES):
                outputs(network, inputs, training=True, draw=number)
            ends.append({name: buffer.detach().clone() for name, buffer in named.items()})
    changed = [name for name, buffer in named.items() if any(not _same(buffer, end[name]) for end in ends)]
    lengths = {name: [float(one.norm()) for one in (named[name], *(end[name] for end in ends))] for name in changed}
    directions = [name for name in changed if all(abs(length - 1) < 1e-3 for length in lengths[name])]
    if directions := [name for name in directions if named[name].numel() > 1]:
        raise ValueError(
            f"has buffers of length 1 that training turns ('{directions[0]}'), as spectral normalisation has. The mean "
            "of clients' is shorter, so that the averaged layer would be several times too large; use weight "
            "normalisation (torch.nn.utils.parametrizations.weight_norm) or max-grad-norm"
        )
    if changed:
        yield (
            f"has buffers that training changes and that are averaged over clients ({', '.join(changed[:5])}); right "
            "for running means, but not for ranges, masks or codebooks"
        )


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
