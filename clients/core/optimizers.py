"""SGD and Adam for local training: PyTorch's own fused kernels, without its optimizer classes.

The first use of a ``torch.optim`` class in a process imports PyTorch's compiler, which takes seconds. On a device every
message starts a process, and a simulation waits for its workers. The functional forms are therefore called directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer(Protocol):
    """Interface of the optimizers that the training loop uses."""

    def zero_grad(self) -> None:
        """Clear the gradients."""

    def step(self) -> None:
        """Update the parameters along their gradients."""

    def memory(self) -> list[Tensor]:
        """Return the state kept between steps, velocities or moments, for :meth:`recall`."""

    def recall(self, memory: Sequence[Tensor]) -> None:
        """Restore the state that :meth:`memory` returned."""


class SGD:
    """Stochastic gradient descent: v ← momentum·v + g + weight_decay·w; w ← w − learning_rate·v.

    Args:
        parameters: tensors to update in place.
        learning_rate: step size > 0.
        momentum: 0..1; 0 keeps no velocity.
        weight_decay: coefficient of the L2 penalty ≥ 0.
    """

    def __init__(
        self, parameters: Sequence[Tensor], learning_rate: float, momentum: float, weight_decay: float
    ) -> None:
        self._parameters = list(parameters)
        self._velocities: list[Tensor | None] = [None] * len(self._parameters)
        self._rate, self._momentum, self._decay = learning_rate, momentum, weight_decay

    def zero_grad(self) -> None:
        """Clear the gradients."""
        _forget(self._parameters)

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters along their gradients."""
        sgd(
            self._parameters,
            _gradients(self._parameters),
            self._velocities,
            has_sparse_grad=False,
            fused=True,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            lr=self._rate,
            momentum=self._momentum,
            weight_decay=self._decay,
        )

    def memory(self) -> list[Tensor]:
        """Return the velocities v; empty before the first step, and without momentum."""
        return [velocity for velocity in self._velocities if velocity is not None]

    def recall(self, memory: Sequence[Tensor]) -> None:
        """Restore the velocities that :meth:`memory` returned."""
        self._velocities = [*_lying_like(self._parameters, memory)] if memory else [None] * len(self._parameters)


class Adam:
    """Adam (Kingma and Ba 2015) with β₁ = 0.9, β₂ = 0.999, ε = 1e-8 and L2 penalty ``weight_decay``."""

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float, weight_decay: float) -> None:
        self._parameters = list(parameters)
        self._means = [torch.zeros_like(p) for p in self._parameters]
        self._squares = [torch.zeros_like(p) for p in self._parameters]
        self._steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self._parameters]
        self._rate, self._decay = learning_rate, weight_decay

    def zero_grad(self) -> None:
        """Clear the gradients."""
        _forget(self._parameters)

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters along their gradients."""
        adam(
            self._parameters,
            _gradients(self._parameters),
            self._means,
            self._squares,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            maximize=False,
            lr=self._rate,
            weight_decay=self._decay,
        )

    def memory(self) -> list[Tensor]:
        """Return first moments, second moments and step counts."""
        return [*self._means, *self._squares, *self._steps]

    def recall(self, memory: Sequence[Tensor]) -> None:
        """Restore the moments and step counts that :meth:`memory` returned."""
        count = len(self._parameters)
        self._means, self._squares = (
            _lying_like(self._parameters, memory[first : first + count]) for first in (0, count)
        )
        self._steps = list(memory[2 * count :])


def _forget(parameters: Sequence[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _lying_like(parameters: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.empty_like(p).copy_(tensor) for p, tensor in zip(parameters, tensors, strict=True)]


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients; a parameter that the loss does not depend on has a gradient of zero.

    The fused kernels ignore strides, so a gradient must have the memory layout of its parameter.
    """
    return [_gradient(parameter) for parameter in parameters]


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    if parameter.grad.stride() != parameter.stride():
        return torch.empty_like(parameter).copy_(parameter.grad)
    return parameter.grad
