"""The server's step along the clients' mean update Δ_t: plain, with momentum, or adaptive.

``server-optimizer = "sgd"``: v_t = β·v_{t−1} + Δ_t (Hsu et al. 2019, FedAvgM); without momentum β it is Δ_t itself.
Adaptive ones (Reddi et al. 2021, Algorithm 2): m_t = β₁·m_{t−1} + (1 − β₁)·Δ_t and the step m_t/(√v_t + τ), with
v_t = v_{t−1} + Δ_t² (FedAdagrad), v_t = β₂·v_{t−1} + (1 − β₂)·Δ_t² (FedAdam), or
v_t = v_{t−1} − (1 − β₂)·Δ_t²·sign(v_{t−1} − Δ_t²) (FedYogi). m and v start from 0. With ``server-bias-correction`` the
step is m̂_t/(√v̂_t + τ), with m̂_t = m_t/(1 − β₁ᵗ) and, where v is a mean too, v̂_t = v_t/(1 − β₂ᵗ) (Kingma and Ba 2015).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, computed
from florilegium.strategies.settings.server import ServerSettings

SQUARE = "square:"
"""Prefix of the names of second moments in a checkpoint."""
COUNT = "steps:"
"""Name of the number of steps in a checkpoint, which a correction of biases needs."""
_Moment = Callable[[NDArray[Any], NDArray[Any], float], NDArray[Any]]


@dataclass(frozen=True)
class _Adaptive:
    """An adaptive server optimizer.

    Attributes:
        moment: v_t as a function of v_{t−1}, Δ_t² and β₂.
        decays: whether v is a mean that β₂ decays, and starts too small.
    """

    moment: _Moment
    decays: bool = True


_ADAPTIVE: Mapping[str, _Adaptive] = {
    "fedadagrad": _Adaptive(lambda v, square, β2: v + square, decays=False),
    "fedadam": _Adaptive(lambda v, square, β2: β2 * v + (1 - β2) * square),
    "fedyogi": _Adaptive(lambda v, square, β2: v - (1 - β2) * square * np.sign(v - square)),
}
ADAPTIVE = tuple(_ADAPTIVE)
"""Names of the adaptive server optimizers for averaged models."""


def refuse_optimizers(settings: ServerSettings, what: str) -> None:
    """Raise :class:`ConfigurationError` if the server's step is not plain; ``what``: what the method does instead."""
    if settings.server_optimizer != "sgd" or settings.server_momentum:
        raise ConfigurationError(
            f"server-optimizer, server-momentum: method '{settings.method}' {what}; use 'sgd' and 0 (found: "
            f"'{settings.server_optimizer}' and {settings.server_momentum:g})"
        )


class ServerStep:
    """The configured server optimizer, with its state.

    Args:
        settings: the keys ``server-optimizer``, ``server-momentum``, ``server-betas``, ``server-bias-correction`` and
            ``server-adaptivity``.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._optimizer, self._adaptivity = settings.server_optimizer, settings.server_adaptivity
        self._adaptive, self._corrected = _ADAPTIVE.get(self._optimizer), settings.server_bias_correction
        self._momentum, self._decay = settings.betas if self._adaptive else (settings.server_momentum, 0.0)
        self.forget()

    def forget(self) -> None:
        """Begin anew, as before the first step."""
        self._means: Arrays = {}  # v of SGD with momentum; m
        self._squares: Arrays = {}  # v of adaptive optimizers
        self._count = 0  # t, which only a correction needs

    def direction(self, update: Arrays) -> Arrays:
        """Return the direction of the step for the mean update Δ_t, which the server's learning rate multiplies."""
        β1, β2 = self._momentum, self._decay
        if self._adaptive is None:
            if β1:
                before = self._means
                update = self._means = computed(lambda m, Δ: β1 * m + Δ, before, update) if before else update
            return update
        moment, τ = self._adaptive.moment, self._adaptivity
        if self._means:
            self._means = computed(lambda m, Δ: β1 * m + (1 - β1) * Δ, self._means, update)
        else:
            self._means = computed(lambda Δ: (1 - β1) * Δ, update)
        before = self._squares or {name: np.broadcast_to(Δ.dtype.type(0), Δ.shape) for name, Δ in update.items()}
        self._squares = computed(lambda v, Δ: moment(v, Δ**2, β2), before, update)
        by_means = by_squares = 1.0
        if self._corrected:
            self._count += 1
            by_means = 1 - β1**self._count
            by_squares = 1 - β2**self._count if self._adaptive.decays else 1.0
        return computed(lambda m, v: m / by_means / (np.sqrt(v / by_squares) + τ), self._means, self._squares)

    def state(self) -> Arrays:
        """Return the moments, and the number of steps if it matters, for checkpoints."""
        counted = {COUNT: np.array([self._count])} if self._corrected else {}
        return {**self._means, **{SQUARE + name: array for name, array in self._squares.items()}, **counted}

    def restore(self, arrays: Arrays) -> None:
        """Restore what :meth:`state` returned."""
        rest = {name: array for name, array in arrays.items() if name != COUNT}
        self._count = int(arrays[COUNT][0]) if COUNT in arrays else 0
        self._means = {name: array for name, array in rest.items() if not name.startswith(SQUARE)}
        self._squares = {n.removeprefix(SQUARE): array for n, array in rest.items() if n.startswith(SQUARE)}
