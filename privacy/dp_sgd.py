"""DP-SGD (Abadi et al. 2016) with Opacus: per-example gradients with clipping and noise, and their privacy cost.

The guarantee protects the presence of a single example of a client. In every step each example takes part at random
(Poisson sampling), its gradient is clipped to norm C, and the sum gets Gaussian noise of standard deviation z·C.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Self

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
from florilegium.privacy.booked import Booked, supported
from florilegium.privacy.ledger import Ledger
from florilegium.privacy.steps import Draws, PrivateSteps

# The inputs of a network need no gradients, and Opacus uses none of theirs.
warnings.filterwarnings("ignore", message="Full backward hook is firing")

_MOST_NOISE, _TOLERANCE, _STEP = 1e6, 0.002, 0.95
_LARGE = (72.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0)
"""Rényi orders beyond those of Opacus, which end at 63: with these, ε is never below ln(1/δ) ÷ the largest order."""
_WHOLE = (*(float(order) for order in range(2, 64)), *_LARGE)
_ORDERS = (*map(float, RDPAccountant.DEFAULT_ALPHAS), *_LARGE)


class Account(Ledger):
    """The privacy cost of a client's training, kept on the client's disk; by Rényi accounting, as in Opacus."""

    def epsilon(self, *more: tuple[float, float, int]) -> float:
        """Return the total ε at δ of all steps so far and of ``more``."""
        return _epsilon((*self.history, *more), self.delta)


def _epsilon(
    history: Sequence[tuple[float, float, int]],
    delta: float,
    orders: tuple[float, ...] = _ORDERS,
) -> float:
    if not history:
        return 0.0
    spent = np.sum([times * _of_a_step(multiplier, rate, orders) for multiplier, rate, times in history], axis=0)
    return max(0.0, float(get_privacy_spent(orders=list(orders), rdp=spent, delta=delta)[0]))  # a bound below 0 is 0


@lru_cache(maxsize=4096)
def _of_a_step(multiplier: float, rate: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Return the Rényi divergence of one step at each order. Divergences add up over steps.

    The result is cached, since it takes a tenth of a second.
    """
    divergences: NDArray[np.float64] = compute_rdp(q=rate, noise_multiplier=multiplier, steps=1, orders=list(orders))
    return divergences


Planned = tuple[tuple[float, float, int], ...]
"""Releases whose z is not known yet: each is (factor that z is multiplied by, sampling rate, number of releases)."""


@lru_cache(maxsize=1024)
def multiplier_for(epsilon: float, delta: float, planned: Planned, fixed: Planned = ()) -> float:
    """Return the noise multiplier z, to within 1 %, with which all releases cost ε at δ in total, and never more.

    Args:
        epsilon, delta: the budget, ε > 0.
        planned: releases whose multipliers are proportional to z.
        fixed: further releases, with fixed multipliers.

    Raises:
        RunError: if the fixed releases alone exceed the budget.
    """

    with warnings.catch_warnings():
        # About multipliers that are only tried, Opacus need not warn.
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return _search(epsilon, delta, planned, fixed)


def _search(epsilon: float, delta: float, planned: Planned, fixed: Planned) -> float:
    """Return :func:`multiplier_for` by bisection."""

    def excess(z: float, orders: tuple[float, ...] = _ORDERS) -> float:
        history = (*((factor * z, rate, times) for factor, rate, times in planned), *fixed)
        return _epsilon(history, delta, orders) - epsilon

    # Integer Rényi orders take a fraction of the time, but give a few per cent too much noise: a first bracket for z.
    low, high = 0.0, 1.0
    while excess(high, _WHOLE) > 0:
        low, high = high, 2 * high
        if high > _MOST_NOISE:
            raise RunError(f"privacy.epsilon: no amount of noise keeps the cost of what is released below {epsilon:g}")
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


class _Once:
    """Hooks each module once, if it has several names in a network; Opacus would count its gradients for each name."""

    def iterate_submodules(self, module: nn.Module) -> Iterable[nn.Module]:
        """Yield the modules that are hooked."""
        yield from dict.fromkeys(super().iterate_submodules(module))  # type: ignore[misc]


class _Sampled(_Once, GradSampleModule):
    pass


class _Ghost(_Once, GradSampleModuleFastGradientClipping):
    pass


class PrivateGradients:
    """Clipped and noised gradients for the steps of one local training (DP-SGD).

    Args:
        model: the network, or the part of it that is trained; only parameters that require gradients are trained.
        multiplier: noise multiplier z ≥ 0.
        clip_norm: clipping norm C > 0.
        rate: sampling rate q, the probability that an example takes part in a step.
        examples: number of training examples n.
        ghost: whether to use ghost clipping (Li et al. 2022), which never stores per-example gradients: one backward
            pass for their norms, another for the clipped sum. It needs less memory, and is faster for large layers.
            Networks of dense and convolutional layers alone need neither (:mod:`florilegium.privacy.booked`).

    Raises:
        RunError: if Opacus does not support per-example gradients for some layer of the network.
    """

    def __init__(
        self, model: nn.Module, multiplier: float, clip_norm: float, rate: float, examples: int, *, ghost: bool = False
    ) -> None:
        # Opacus' per-example gradients are silently wrong for convolutions in channels-last layout.
        self._layouts = [(p, p.stride()) for p in model.parameters() if p.dim() == 4]
        self._network = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise RunError("no parameter of the network is trained")
        for name, module in model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:  # with parameters or without
                raise RunError(f"layer '{name}' is batch norm, which mixes examples: none has a gradient of its own")
        steps = PrivateSteps(multiplier, clip_norm, rate, examples, ghost)
        self._expected, self._draws = steps.expected, Draws(steps)
        self._backward = False  # whether there was a backward pass since the last step
        self._booked: Booked | None = None
        self._norms, self._sums = list[Tensor](), dict[nn.Parameter, Tensor]()  # of a batch, with ``_booked``
        self.model: Any = model
        if supported(model):
            self._booked, self._layouts = Booked(model, clip_norm), []
            return
        try:
            for parameter, _ in self._layouts:
                parameter.data = _plain(parameter.data)
            self.model = (
                _Ghost(model, max_grad_norm=clip_norm) if ghost else _Sampled(model, loss_reduction="mean", strict=True)
            )
            self.model.register_forward_pre_hook(lambda module, inputs: tuple(map(_plain, inputs)))
        except Exception as error:
            self.end()
            raise RunError(f"the network has a layer without gradients of single examples: {error}") from error
        self._ghost = ghost
        self._optimizer = (DPOptimizerFastGradientClipping if ghost else DPOptimizer)(
            torch.optim.SGD(self._parameters, lr=0.0),
            noise_multiplier=0.0,  # Opacus clips; protect() adds the noise
            max_grad_norm=clip_norm,
            expected_batch_size=self._expected,
        )

    @classmethod
    def of(cls, model: nn.Module, steps: PrivateSteps) -> Self:
        """Return the private gradients of a training with these steps."""
        return cls(model, steps.multiplier, steps.clip_norm, steps.rate, steps.examples, ghost=steps.ghost)

    def batch(self) -> Tensor:
        """Draw the examples that take part in the next step; return their indices, possibly none."""
        return torch.from_numpy(self._draws.batch()).to(self._parameters[0].device)

    def backward(self, objective: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Run the backward pass for a batch; return its mean loss, 0 if it is empty.

        For networks of dense and convolutional layers alone, the clipped sums of several calls add up, so that a batch
        may come in parts. An example whose gradient is not finite counts as if its gradient were zero: if it spoilt the
        sum, the failure would tell that it is there.

        Args:
            objective: returns the losses (b,) of examples, given their rows (b,).
            rows: the rows of the batch.
        """
        if not len(rows):
            return torch.zeros((), device=rows.device)
        losses = objective(rows)
        self._backward = True
        if self._booked is not None:
            losses.sum().backward()
            self._add(self._booked, len(rows))
            return losses.detach().mean()
        if not self._ghost:
            losses.mean().backward()
            return losses.detach().mean()
        DPTensorFastGradientClipping(self.model, self._optimizer, losses, "mean").backward()
        if not self._finite():  # the pass for the sum is repeated without the others
            usable = self.model.per_sample_gradient_norms.isfinite()
            self.forget()
            self._backward = False
            self.backward(objective, rows[usable] if not usable.all() else rows[:0])
        return losses.detach().mean()

    def _add(self, booked: Booked, count: int) -> None:
        """Add the clipped gradients of ``count`` examples to the sums."""
        if any(parameter.grad is not None for parameter in self._parameters):
            raise RunError("a parameter of the network is used without its layer, and has no gradients of examples")
        norms, clipped = booked.clipped(count)
        booked.forget()
        self._norms.append(norms)
        for parameter, own in clipped:
            self._sums[parameter] = self._sums[parameter] + own if parameter in self._sums else own

    def protect(self) -> None:
        """Store the clipped and noised mean gradient of the batch in ``.grad``; for an empty batch, only noise."""
        for parameter, clipped in self._sums.items():
            parameter.grad = clipped / self._expected
        self._norms, self._sums = [], {}
        if self._backward and self._booked is None:
            self._optimizer.pre_step()
            if not self._finite():
                self._drop_unusable()
                self._optimizer.pre_step()
        self._backward = False
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if self._draws.deviation:
                parameter.grad += torch.from_numpy(self._draws.noise(tuple(parameter.shape))).to(parameter.device)

    def _finite(self) -> bool:
        """Return whether the gradient of the batch is; clipped gradients are too small for their sum to overflow."""
        sums = [parameter.grad.sum() for parameter in self._parameters if parameter.grad is not None]
        return not sums or bool(torch.stack(sums).sum().isfinite())

    def _drop_unusable(self) -> None:
        """Set the gradients of examples that are not finite to zero, before the batch is clipped again."""
        samples = [parameter.grad_sample for parameter in self._parameters]  # type: ignore[attr-defined]
        usable = torch.stack([s.reshape(len(s), -1).square().sum(dim=1) for s in samples]).sum(dim=0).isfinite()
        for parameter, sample in zip(self._parameters, samples, strict=True):
            kept = torch.where(usable.view(-1, *[1] * (sample.dim() - 1)), sample, 0.0)
            parameter.grad_sample, parameter.summed_grad = kept, None  # type: ignore[attr-defined]

    def idle(self) -> set[nn.Parameter]:
        """Return the trained parameters that had no part in the outputs; with ghost clipping, Opacus does not know."""
        if self._booked is not None:
            return set(self._parameters) - set(self._sums)
        return set() if self._ghost else {p for p in self._parameters if p.grad_sample is None}  # type: ignore[attr-defined]

    def norms(self) -> Tensor | None:
        """Return the norms of the gradients of the batch's examples, (b,), before the step; None if all are known."""
        if self._booked is not None:
            return torch.cat(self._norms)
        return self.model.per_sample_gradient_norms.detach() if self._ghost else None

    def forget(self) -> None:
        """Reset all gradients, before a step."""
        if self._booked is None:
            self._optimizer.zero_grad()
            return
        self._norms, self._sums = [], {}
        for parameter in self._parameters:
            parameter.grad = None

    def end(self) -> None:
        """Remove everything added to the network, even after an error: the next client uses the same network."""
        if self._booked is not None:
            self._booked.end()
        elif self.model is not self._network:
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
    """Return ``tensor`` with the strides of PyTorch's default memory layout.

    ``contiguous()`` does not suffice: with one channel, PyTorch takes a channels-last tensor to be contiguous.
    """
    return tensor.reshape(-1).view(tensor.shape)
