"""FedAvg, server side (McMahan et al. 2017, Algorithm 1), with a server step (Hsu et al. 2019, FedAvgM).

Sent: the global model w_t. Received: Σ_k w_k·(w_k − w_t) and Σ_k w_k over the cohort, with w_k = n_k
(``weighting = "examples"``) or 1 (``"uniform"``). Step: Δ_t = Σ w_k (w_k − w_t) / Σ w_k;
v_t = β·v_{t−1} + Δ_t; w_{t+1} = w_t + η·v_t, with η = ``server-learning-rate`` and β = ``server-momentum``.
η = 1 and β = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from clients.wire import BESIDE, pack, unpack
from common.settings import Value
from models.parameters import Arrays
from strategies.cohort import CohortStrategy
from strategies.exchange import Outcome


class FedAvg(CohortStrategy):
    """Weighted averaging of the cohort's models.

    Attributes:
        beside: arrays that a method sends along with the model; their names begin with ``BESIDE``. Where clients answer
            them, :meth:`learn` finds the sums of their changes in its outcome.
    """

    beside: Arrays

    _model: Arrays
    _velocity: Arrays | None = None  # v in the equations above

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
        step = self.direction({name: outcome.arrays[name] / outcome.weight for name in self._model})
        eta = self.settings.server_learning_rate
        new = {name: (w + eta * step[name]).astype(w.dtype) for name, w in self._model.items()}
        return pack(new), MetricRecord({"loss": outcome.mean("loss"), "clients": len(outcome.clients)})

    def direction(self, update: Arrays) -> Arrays:
        """Return what the server's step goes along, for the mean update Δ_t: here v_t."""
        beta = self.settings.server_momentum
        if beta:
            if self._velocity is not None:
                update = {name: beta * self._velocity[name] + step for name, step in update.items()}
            self._velocity = update
        return update

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The velocity v, and what travels beside the model."""
        return {**(self._velocity or {}), **self.beside}, {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take them back."""
        self.beside = {name: array for name, array in arrays.items() if name.startswith(BESIDE)}
        self._velocity = {name: array for name, array in arrays.items() if name not in self.beside} or None
