"""The server's step along the clients' mean update Δ_t: plain, with momentum, or adaptive.

``server-optimizer = "sgd"``: v_t = β·v_{t−1} + Δ_t (Hsu et al. 2019, FedAvgM); without momentum β it is Δ_t itself.
Adaptive ones (Reddi et al. 2021, Algorithm 2): m_t = β₁·m_{t−1} + (1 − β₁)·Δ_t and the step m_t/(√v_t + τ), with
v_t = v_{t−1} + Δ_t² (FedAdagrad), v_t = β₂·v_{t−1} + (1 − β₂)·Δ_t² (FedAdam), or
v_t = v_{t−1} − (1 − β₂)·Δ_t²·sign(v_{t−1} − Δ_t²) (FedYogi). m and v start from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays
from florilegium.strategies.settings.server import ServerSettings

SQUARE = "square:"
"""Prefix of the names of second moments in a checkpoint."""
_Moment = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
_MOMENTUM: Mapping[str, float] = {"fedadagrad": 0.0, "fedadam": 0.9, "fedyogi": 0.9}
"""β₁ in the paper's experiments."""
_DECAY = 0.99
"""β₂ in the paper's experiments."""
_SECOND_MOMENT: Mapping[str, _Moment] = {
    "fedadagrad": lambda v, square: v + square,
    "fedadam": lambda v, square: _DECAY * v + (1 - _DECAY) * square,
    "fedyogi": lambda v, square: v - (1 - _DECAY) * square * np.sign(v - square),
}
"""v_t as a function of v_{t−1} and Δ_t²."""
ADAPTIVE = tuple(_SECOND_MOMENT)
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
        settings: the keys ``server-optimizer``, ``server-momentum`` and ``server-adaptivity``.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._optimizer, self._adaptivity = settings.server_optimizer, settings.server_adaptivity
        self._momentum = _MOMENTUM.get(self._optimizer, settings.server_momentum)
        self.forget()

    def forget(self) -> None:
        """Begin anew, as before the first step."""
        self._means: Arrays = {}  # v of SGD with momentum; m
        self._squares: Arrays = {}  # v of adaptive optimizers

    def direction(self, update: Arrays) -> Arrays:
        """Return the direction of the step for the mean update Δ_t, which the server's learning rate multiplies."""
        if self._optimizer == "sgd":
            if self._momentum:
                update = self._means = _decayed(self._means, self._momentum, update)
            return update
        β1, next_moment = self._momentum, _SECOND_MOMENT[self._optimizer]
        self._means = _decayed(self._means, β1, {name: (1 - β1) * Δ for name, Δ in update.items()})
        before = self._squares or {name: np.zeros_like(Δ) for name, Δ in update.items()}
        self._squares = {name: next_moment(before[name], Δ**2) for name, Δ in update.items()}
        return {name: m / (np.sqrt(self._squares[name]) + self._adaptivity) for name, m in self._means.items()}

    def state(self) -> Arrays:
        """Return the moments, for checkpoints."""
        return {**self._means, **{SQUARE + name: array for name, array in self._squares.items()}}

    def restore(self, arrays: Arrays) -> None:
        """Restore the moments that :meth:`state` returned."""
        self._means = {name: array for name, array in arrays.items() if not name.startswith(SQUARE)}
        self._squares = {n.removeprefix(SQUARE): array for n, array in arrays.items() if n.startswith(SQUARE)}


def _decayed(old: Arrays, decay: float, new: Arrays) -> Arrays:
    """Return decay·old + new, or ``new`` if there is no ``old``."""
    return {name: decay * old[name] + array for name, array in new.items()} if old else new
