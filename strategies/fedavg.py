"""FedAvg, server side (McMahan et al. 2017, Algorithm 1), with a server step (Hsu et al. 2019, FedAvgM).

Sends the global model w_t. Receives Σ_k p_k·(w_k − w_t) and Σ_k p_k over the cohort, with the weights p_k = n_k
(``weighting = "examples"``) or 1 (``"uniform"``). Server step: Δ_t = Σ p_k (w_k − w_t) / Σ p_k;
v_t = β·v_{t−1} + Δ_t; w_{t+1} = w_t + η·v_t, with η = ``server-learning-rate`` and β = ``server-momentum``.
η = 1 and β = 0 is FedAvg. ``server-optimizer = "fedadam"`` is FedAdam (Reddi et al. 2021, Algorithm 2).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, is_statistic
from florilegium.strategies.core.cohort import CohortStrategy, Setup, sums_of_updates, whole_network
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.round import Round

DECAY = (0.9, 0.99)
"""β₁ and β₂ of FedAdam (Reddi et al. 2021)."""
SQUARE = "square:"
"""Prefix of the names of Adam's second moments in a checkpoint."""

log = logging.getLogger("flwr")


class FedAvg(CohortStrategy):
    """Weighted averaging of the cohort's models, with a server optimizer.

    Attributes:
        beside: arrays that a method sends beside the model; their names begin with ``BESIDE``. If clients return them,
            the outcome passed to :meth:`learn` contains the weighted sums of their changes.
    """

    beside: Arrays

    _velocity: Arrays | None = None  # v in the equations above, and Adam's m
    _squares: Arrays | None = None  # Adam's s

    privacy_gap = staticmethod(sums_of_updates)
    transfer_gap = staticmethod(whole_network)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.beside = {}
        if self.settings.server_optimizer == "adam":
            raise ConfigurationError(
                f"server-optimizer: 'adam' is for hypernetworks; '{self.settings.method}' averages models, for which "
                "there are 'sgd' and 'fedadam' (called 'adam' in earlier versions)"
            )

    def train_arguments(self, round: Round, cohort: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of the phase ``train`` in this round. By default: none."""
        return {}

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Update a method's own state from the outcome of the cohort's training of ``model``. By default: do nothing.

        Called before the model is updated.
        """

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort train the model; take a server step along the mean update, and return the new model."""
        cohort = round.sample()
        arguments = self.train_arguments(round, cohort)
        outcome = round.ask("train", cohort, send=model | self.beside, reduce="delta", **arguments)
        self.learn(round, model, outcome)
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        update = {name: outcome.arrays[name] / outcome.weight for name in model}
        step = self.direction({name: Δ for name, Δ in update.items() if not is_statistic(name)})
        η = self.settings.server_learning_rate
        return {n: (w + (η * step[n] if n in step else update[n])).astype(w.dtype) for n, w in model.items()}

    def direction(self, update: Arrays) -> Arrays:
        """Return the direction of the server step for the mean update Δ_t: v_t, or that of FedAdam."""
        s = self.settings
        if s.server_optimizer == "fedadam":
            β1, β2 = DECAY
            self._velocity = _decayed(self._velocity, β1, {name: (1 - β1) * Δ for name, Δ in update.items()})
            self._squares = _decayed(self._squares, β2, {name: (1 - β2) * Δ**2 for name, Δ in update.items()})
            return {n: m / (np.sqrt(self._squares[n]) + s.server_adaptivity) for n, m in self._velocity.items()}
        if s.server_momentum:
            update = self._velocity = _decayed(self._velocity, s.server_momentum, update)
        return update

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the server optimizer's state and the arrays sent beside the model, for checkpoints."""
        squares = {SQUARE + name: array for name, array in (self._squares or {}).items()}
        return {**(self._velocity or {}), **squares, **self.beside}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the server optimizer's state and the arrays sent beside the model."""
        self.beside = {name: array for name, array in arrays.items() if name.startswith(BESIDE)}
        squares = {name: array for name, array in arrays.items() if name.startswith(SQUARE)}
        self._squares = {name.removeprefix(SQUARE): array for name, array in squares.items()} or None
        velocity = arrays.keys() - self.beside.keys() - squares.keys()
        self._velocity = {name: arrays[name] for name in arrays if name in velocity} or None


def _decayed(old: Arrays | None, decay: float, new: Arrays) -> Arrays:
    """Return decay·old + new, or ``new`` if there is no ``old``."""
    return new if old is None else {name: decay * old[name] + array for name, array in new.items()}
