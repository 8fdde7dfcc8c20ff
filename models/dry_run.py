"""A dry run of a network of another package: whether it can be trained, and what it returns, before a run begins.

Errors are ``ValueError`` whose message continues a sentence about the network: "returns …", "has …".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from florilegium.common.seeds import torch_draws, torch_generator
from florilegium.models.mapped import copied
from florilegium.models.parameters import trained

_BATCH = 3
"""Number of inputs in a dry run; more than one, for batch norm."""


def random_inputs(shape: tuple[int, ...], *, codes: int) -> Tensor:
    """Return a batch of random inputs (n, *shape): standard normal numbers, or int64 codes in 0..``codes`` − 1.

    Images are in channels-last layout, as those of a run.
    """
    generator = torch_generator(0, "dry run")
    if codes:
        return torch.randint(codes, (_BATCH, *shape), generator=generator)
    if len(shape) != 3:
        return torch.randn(_BATCH, *shape, generator=generator)
    # Not ``contiguous(memory_format=…)``, which leaves images of one channel as they are.
    return torch.randn(_BATCH, *shape[1:], shape[0], generator=generator).permute(0, 3, 1, 2)


def check_tensors(network: nn.Module) -> None:
    """Raise ``ValueError`` unless the network has parameters to train, and only tensors that can be exchanged."""
    named = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, tensor in named.items():
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            advice = "complex numbers are not supported" if tensor.is_complex() else "call .float() on the network"
            raise ValueError(f"has '{name}' in {tensor.dtype}; networks are trained in torch.float32: {advice}")
    if not dict(network.named_parameters()):
        raise ValueError("has no parameters to train")
    if not trained(network):
        raise ValueError("has only frozen parameters (requires_grad = False); nothing is left to train")


def materialise(network: nn.Module, x: Tensor) -> None:
    """Initialise the lazy layers of a network, if any, by a forward pass on ``x``; they draw as any initialisation.

    Raises:
        ValueError: if the pass fails, or some layer has no part in it.
    """
    if not any(map(is_lazy, [*network.parameters(), *network.buffers()])):
        return
    network.eval()
    try:
        with torch.no_grad():
            network(x.clone(memory_format=torch.contiguous_format))
    except Exception as error:  # the code of another package may raise anything
        raise ValueError(f"fails on inputs {tuple(x.shape)} {x.dtype}: {type(error).__name__}: {error}") from error
    if unused := [name for name, parameter in network.named_parameters() if is_lazy(parameter)]:
        raise ValueError(f"has a lazy layer that it does not use: '{unused[0]}' has no shape yet")


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Context after which the parameters and buffers of a network are what they were; it is in training mode."""
    tensors = [*network.parameters(), *network.buffers()]
    (before,) = copied(tensors)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        network.train()


def outputs(network: nn.Module, x: Tensor, *, training: bool, gradients: bool = False, draw: int = 0) -> Tensor:
    """Return the outputs of a network for ``x``, in training or in evaluation mode; layers draw as ``draw`` names it.

    Outputs in training mode, and others if ``gradients`` are asked for, can be differentiated.
    """
    network.train(training)
    with torch_draws(draw, "dry run"), torch.set_grad_enabled(training or gradients):
        result: Tensor = network(x)
        return result


def check_outputs(network: nn.Module, x: Tensor, wanted: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless the network maps ``x`` (n, …) to finite, trainable outputs (n, *wanted)."""
    for training in (False, True):
        mode = "training" if training else "evaluation"
        try:
            found = outputs(network, x, training=training)
        except Exception as error:  # the code of another package may raise anything
            inputs = f"{tuple(x.shape)} {x.dtype}"
            raise ValueError(f"fails in {mode} mode on inputs {inputs}: {type(error).__name__}: {error}") from error
        what = "a number for each input and class" if len(wanted) == 1 else "numbers for each input, class and position"
        expected = f"expected a tensor {(len(x), *wanted)}, {what}"
        if not isinstance(found, Tensor):
            raise ValueError(f"returns {type(found).__name__} in {mode} mode; {expected}")
        if found.shape != (len(x), *wanted) or found.dtype != torch.float32:
            shown = f"{tuple(found.shape)} {found.dtype}"
            raise ValueError(f"returns a tensor {shown} in {mode} mode for {len(x)} inputs; {expected}")
        if not found.isfinite().all():
            raise ValueError(f"returns NaN or infinity in {mode} mode, for standard normal inputs")
        if training and not found.requires_grad:
            raise ValueError("returns outputs that do not depend on its trained parameters; nothing could be learned")
