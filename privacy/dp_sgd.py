"""DP-SGD (Abadi et al. 2016) by Opacus: gradients of single examples, clipped and noised; and what they cost.

Protected is the presence of one example of a client: in every step each example takes part by chance (Poisson
sampling), its gradient is clipped to norm C, and the sum gets Gaussian noise of deviation z·C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from scipy.optimize import brentq
from torch import Tensor, nn

from florilegium.common.errors import RunError
from florilegium.privacy.ledger import Ledger
from florilegium.privacy.noise import secret_generator

_MOST_NOISE, _TOLERANCE, _STEP = 1e6, 0.002, 0.95
_WHOLE = tuple(float(order) for order in range(2, 64))


class Account(Ledger):
    """What a client's training has cost its examples, kept on its disk; by Rényi privacy, as Opacus counts it."""

    def epsilon(self, *more: tuple[float, float, int]) -> float:
        """Return ε at δ of all steps so far, and of ``more``."""
        return _epsilon((*self.history, *more), self.delta)


def _epsilon(
    history: Sequence[tuple[float, float, int]],
    delta: float,
    orders: tuple[float, ...] = tuple(RDPAccountant.DEFAULT_ALPHAS),
) -> float:
    if not history:
        return 0.0
    spent = np.sum([times * _of_a_step(multiplier, rate, orders) for multiplier, rate, times in history], axis=0)
    return float(get_privacy_spent(orders=list(orders), rdp=spent, delta=delta)[0])


@lru_cache(maxsize=4096)
def _of_a_step(multiplier: float, rate: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the Rényi divergence of one step at each order, which adds up over steps; it takes a tenth of a second."""
    divergences: NDArray[np.float64] = compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=list(orders))
    return divergences


Planned = tuple[tuple[float, float, int], ...]
"""Releases before z is known: by how much z is multiplied in them, their sampling rate, and their number."""


@lru_cache(maxsize=1024)
def multiplier_for(epsilon: float, delta: float, planned: Planned, fixed: Planned = ()) -> float:
    """Return the noise multiplier z with which releases cost ε at δ together, to a hundredth, and never more.

    Args:
        epsilon, delta: the budget, ε > 0.
        planned: releases with multipliers in proportion to z.
        fixed: others besides, with the multipliers that they have.

    Raises:
        RunError: if those with fixed multipliers exceed the budget by themselves.
    """

    def excess(z: float, orders: Sequence[float] = RDPAccountant.DEFAULT_ALPHAS) -> float:
        history = (*((factor * z, rate, times) for factor, rate, times in planned), *fixed)
        return _epsilon(history, delta, tuple(orders)) - epsilon

    # Whole orders cost a fraction of the time, and give more noise than is needed, by a few per cent.
    low, high = 0.0, 1.0
    while excess(high, _WHOLE) > 0:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise RunError(f"privacy.epsilon: no noise makes what is released cost less than {epsilon:g}")
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle, _WHOLE) > 0 else (low, middle)
    least = high
    while excess(least) <= 0:
        least, high = least * _STEP, least
    found = float(brentq(excess, least, high, xtol=_TOLERANCE * least))
    while excess(found) > 0:
        found *= 1 + _TOLERANCE
    return found


class PrivateGradients:
    """Gradients for the steps of one training.

    Args:
        model: the network, or the part of it that is trained; only parameters that require gradients are.
        multiplier: z ≥ 0.
        clip_norm: C > 0.
        rate: q, the probability with which an example takes part in a step.
        examples: n, how many there are.
        ghost: whether gradients of single examples are clipped without being made: one pass backwards for their norms,
            a second for the sum (ghost clipping; Li et al. 2022). Less memory; it is faster where layers are large.

    Raises:
        RunError: if Opacus has no gradients of single examples for some layer of the network.
    """

    def __init__(
        self, model: nn.Module, multiplier: float, clip_norm: float, rate: float, examples: int, *, ghost: bool = False
    ) -> None:
        # Opacus' gradients of single examples are wrong, without a word, where convolutions have their channels last.
        self._layouts = [(p, p.stride()) for p in model.parameters() if p.dim() == 4]
        self._network = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._rate, self._examples = rate, examples
        if not self._parameters:
            raise RunError("no parameter of the network is trained")
        try:
            for parameter, _ in self._layouts:
                parameter.data = _plain(parameter.data)
            self.model = (
                GradSampleModuleFastGradientClipping(model, max_grad_norm=clip_norm)
                if ghost
                else GradSampleModule(model, loss_reduction="mean", strict=True)
            )
            self.model.register_forward_pre_hook(lambda module, inputs: tuple(map(_plain, inputs)))
        except Exception as error:
            self.end()
            raise RunError(
                f"the network has a layer without gradients of single examples, such as batch norm: {error}"
            ) from error
        # Whoever knew a seed could take the noise away; torch's generator on CPUs has one of 32 bits.
        self._rng = secret_generator()
        self._deviation = multiplier * clip_norm
        self._ghost = ghost
        self._backward = False  # whether there was a pass since the last step
        self._optimizer = (DPOptimizerFastGradientClipping if ghost else DPOptimizer)(
            torch.optim.SGD(self._parameters, lr=0.0),
            noise_multiplier=0.0,  # it clips; the noise is ours
            max_grad_norm=clip_norm,
            expected_batch_size=max(1, round(rate * examples)),
        )

    def batch(self) -> Tensor:
        """Return the rows that take part in a step; there may be none."""
        chosen = torch.from_numpy((self._rng.random(self._examples) < self._rate).nonzero()[0])
        return chosen.to(self._parameters[0].device)

    def backward(self, losses: Tensor) -> None:
        """Compute the gradients of a batch's losses, (b,), each of one example."""
        if self._ghost:
            DPTensorFastGradientClipping(self.model, self._optimizer, losses, "mean").backward()
        else:
            losses.mean().backward()
        self._backward = True

    def protect(self) -> None:
        """Put the clipped and noised mean of the last backward pass into ``.grad``; noise alone, if there was none."""
        if self._backward:
            self._backward = False
            self._optimizer.pre_step()
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self._deviation:
                noise = torch.from_numpy(self._rng.standard_normal(tuple(parameter.shape), np.float32))
                scale = self._deviation / self._optimizer.expected_batch_size
                parameter.grad.add_(noise.to(parameter.device), alpha=scale)

    def forget(self) -> None:
        """Forget gradients, before a step."""
        self._optimizer.zero_grad()

    def end(self) -> None:
        """Give the network back as it was, whatever has happened: the next client works with it."""
        if hasattr(self, "model"):
            self.model.remove_hooks()
        for module in self._network.modules():
            for name in ("activations", "max_batch_len"):
                vars(module).pop(name, None)
        for parameter in self._network.parameters():
            for name in ("grad_sample", "_norm_sample", "_current_grad_sample", "_forward_counter", "summed_grad"):
                vars(parameter).pop(name, None)
            parameter.grad = None
        for parameter, strides in self._layouts:
            parameter.data = torch.empty_strided(
                parameter.shape, strides, dtype=parameter.dtype, device=parameter.device
            ).copy_(parameter.data)


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor as it lies in memory by default; also one of one channel, where torch sees no difference."""
    return tensor.reshape(-1).view(tensor.shape)


def steps_of(examples: int, batch: int, epochs: int) -> int:
    """Return how many steps ``epochs`` have, of batches of ``batch`` examples on average."""
    return epochs * -(-examples // batch)
