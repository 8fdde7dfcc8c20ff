"""Whether a network mixes the examples of a batch, by a dry run: then no gradient is that of one example alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.common.seeds import torch_generator
from florilegium.models.dry_run import outputs, undisturbed

_SHIFT = 0.05
"""Width of the random shift of parameters, since a layer of zeros hides what is before it."""
_SCALES = (1.0, 10.0)
"""Factors of the inputs."""
_TOLERANCE = 1e-5
"""Largest change of an output that rounding explains, relative to the largest output."""


def mixing(network: nn.Module, x: Tensor) -> str:
    """Return how a network mixes examples in training mode, "" if it does not; it is left as it was, in this mode.

    One example after the other is replaced. The outputs for the others must not move, nor may buffers differ, such as
    running means, which would tell of all examples together.

    Args:
        network: the network; parameters need no gradients for this.
        x: a batch of at least two inputs, numbers or codes.
    """
    generator = torch_generator(0, "mixing")
    with undisturbed(network), torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter), alpha=_SHIFT)
        for scale in _SCALES if x.is_floating_point() else (1,):
            for row in range(len(x)):
                if found := _mixes(network, x * scale, row):
                    return found
    return ""


def _mixes(network: nn.Module, x: Tensor, row: int) -> str:
    other = x.clone()
    other[row] = x[(row + 1) % len(x)] if not x.is_floating_point() else 1.0 - 3.0 * x[row]
    rest = [index for index in range(len(x)) if index != row]
    first, buffers = _run(network, x)
    second, others = _run(network, other)
    if float((first - second)[rest].abs().max()) > _TOLERANCE * max(1.0, float(first.abs().max())):
        return "its output for one example depends on the others of the batch, in training mode"
    for name, buffer in buffers.items():
        if not torch.equal(buffer, others[name]):
            return f"its buffer '{name}' follows all examples of a batch together, in training mode"
    return ""


def _run(network: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outputs in training mode, and the buffers afterwards, which are then put back."""
    with undisturbed(network):
        found = outputs(network, x, training=True).detach()
        return found, {name: buffer.clone() for name, buffer in network.named_buffers()}
