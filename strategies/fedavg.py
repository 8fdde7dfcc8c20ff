"""FedAvg, server side (McMahan et al. 2017, Algorithm 1), with a server step (Hsu et al. 2019, FedAvgM).

Sent: the global model w_t. Received: Σ_k w_k·(w_k − w_t) and Σ_k w_k over the cohort, with w_k = n_k
(``weighting = "examples"``) or 1 (``"uniform"``). Step: Δ_t = Σ w_k (w_k − w_t) / Σ w_k;
v_t = β·v_{t−1} + Δ_t; w_{t+1} = w_t + η·v_t, with η = ``server-learning-rate`` and β = ``server-momentum``.
η = 1 and β = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from clients.wire import pack, unpack
from common.settings import Value
from models.parameters import Arrays
from strategies.cohort import CohortStrategy
from strategies.exchange import Outcome


class FedAvg(CohortStrategy):
    """Weighted averaging of the cohort's models."""

    _model: Arrays
    _velocity: Arrays | None = None  # v in the equations above

    def train_scalars(self) -> dict[str, Value]:
        """Return the numbers a method sends along with the model."""
        return {}

    def learn(self, outcome: Outcome) -> None:
        """Let a method learn from the cohort's numbers after a round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the round's cohort."""
        self._model = unpack(arrays)
        return self.requests(
            self.sample(server_round),
            server_round,
            "train",
            reduce="delta",
            arrays=arrays,
            **{**config, **self.train_scalars()},  # type: ignore[arg-type]
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the server step along the mean update."""
        outcome = self.require(self.collect(replies), len(self.cohort))
        step = self.direction({name: total / outcome.weight for name, total in outcome.arrays.items()})
        eta = self.settings.server_learning_rate
        new = {name: (w + eta * step[name]).astype(w.dtype) for name, w in self._model.items()}
        self.learn(outcome)
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
        """The velocity v."""
        return dict(self._velocity or {}), {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Take the velocity back."""
        self._velocity = arrays or None
