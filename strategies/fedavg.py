"""FedAvg, server side (McMahan et al. 2017, Algorithm 1), with a server step (Hsu et al. 2019, FedAvgM).

Sent: the global model w_t. Received: Σ_k w_k·(w_k − w_t) and Σ_k w_k over the cohort, with w_k = n_k
(``weighting = "examples"``) or 1 (``"uniform"``). Step: Δ_t = Σ w_k (w_k − w_t) / Σ w_k;
v_t = β·v_{t−1} + Δ_t; w_{t+1} = w_t + η·v_t, with η = ``server-learning-rate`` and β = ``server-momentum``.
η = 1 and β = 0 is FedAvg. ``server-optimizer = "adam"`` is FedAdam (Reddi et al. 2021, Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from clients.wire import BESIDE, pack, unpack
from common.settings import Value
from models.parameters import Arrays, is_statistic
from strategies.cohort import CohortStrategy
from strategies.exchange import Outcome

DECAY = (0.9, 0.99)
"""β₁ and β₂ of FedAdam (Reddi et al. 2021)."""
SQUARE = "square:"
"""What the names of Adam's second moments begin with, in a checkpoint."""


class FedAvg(CohortStrategy):
    """Weighted averaging of the cohort's models.

    Attributes:
        beside: arrays that a method sends along with the model; their names begin with ``BESIDE``. Where clients answer
            them, :meth:`learn` finds the sums of their changes in its outcome.
    """

    beside: Arrays

    _model: Arrays
    _velocity: Arrays | None = None  # v in the equations above, and Adam's m
    _squares: Arrays | None = None  # Adam's s

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beside = {}

    def privacy_gap(self) -> str:
        """Return nothing: the server learns from the sum of changes alone."""
        return ""

    def train_scalars(self, server_round: int, cohort: Sequence[str]) -> dict[str, Value | list[str]]:
        """Return the numbers and words a method sends along with the model."""
        return {}

    def learn(self, outcome: Outcome) -> None:
        """Let a method learn from what the cohort answered, before the model changes."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the round's cohort."""
        self._model = unpack(arrays)
        cohort = self.sample(server_round)
        return self.requests(
            cohort,
            server_round,
            "train",
            reduce="delta",
            arrays=pack(self._model | self.beside) if self.beside else arrays,
            **{**config, **self.train_scalars(server_round, cohort)},  # type: ignore[arg-type]
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the server step along the mean update."""
        outcome = self.require(self.collect(replies), self.wanted)
        self.learn(outcome)
        update = {name: outcome.arrays[name] / outcome.weight for name in self._model}
        step = self.direction({name: Δ for name, Δ in update.items() if not is_statistic(name)})
        eta = self.settings.server_learning_rate
        new = {n: (w + (eta * step[n] if n in step else update[n])).astype(w.dtype) for n, w in self._model.items()}
        return pack(new), MetricRecord({"loss": outcome.mean("loss"), "clients": len(outcome.clients)})

    def direction(self, update: Arrays) -> Arrays:
        """Return what the server's step goes along, for the mean update Δ_t: v_t, or Adam's direction."""
        s = self.settings
        if s.server_optimizer == "adam":
            β1, β2 = DECAY
            self._velocity = _decayed(self._velocity, β1, {name: (1 - β1) * Δ for name, Δ in update.items()})
            self._squares = _decayed(self._squares, β2, {name: (1 - β2) * Δ**2 for name, Δ in update.items()})
            return {n: m / (np.sqrt(self._squares[n]) + s.server_adaptivity) for n, m in self._velocity.items()}
        if s.server_momentum:
            update = self._velocity = _decayed(self._velocity, s.server_momentum, update)
        return update

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The velocity v, Adam's squares, and what travels beside the model."""
        squares = {SQUARE + name: array for name, array in (self._squares or {}).items()}
        return {**(self._velocity or {}), **squares, **self.beside}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take them back."""
        self.beside = {name: array for name, array in arrays.items() if name.startswith(BESIDE)}
        squares = {name: array for name, array in arrays.items() if name.startswith(SQUARE)}
        self._squares = {name.removeprefix(SQUARE): array for name, array in squares.items()} or None
        velocity = arrays.keys() - self.beside.keys() - squares.keys()
        self._velocity = {name: arrays[name] for name in arrays if name in velocity} or None


def _decayed(old: Arrays | None, decay: float, new: Arrays) -> Arrays:
    """Return decay·old + new, where there is an old."""
    return new if old is None else {name: decay * old[name] + array for name, array in new.items()}
