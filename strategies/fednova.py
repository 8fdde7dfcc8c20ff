"""FedNova, server side (Wang et al. 2020, equation 8): FedAvg of updates that are scaled to as many steps.

Sends the global model and τ_eff. By default it is Σ p_i·‖a_i‖₁ over the cohort, the mean number of steps (with momentum
or a proximal term: of their sums of weights), with the weights p_i of the average; ‖a_i‖₁ follows from the clients'
numbers of examples, which the roster knows. The server step is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from florilegium.clients.fednova import normaliser
from florilegium.clients.hyper.federated import FedNovaHyper
from florilegium.common.errors import ConfigurationError
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class FedNova(FedAvg):
    """FedAvg of normalised updates."""

    hyper: FedNovaHyper

    @staticmethod
    def messages(hyper: FedNovaHyper) -> Messages:
        """Return FedAvg's messages, but for τ_eff: unless it is fixed, the server learns it from single clients."""
        learned = (
            "τ_eff follows from the cohort's numbers of examples, which are not protected; set fednova.effective-steps"
        )
        return Messages("sum", features="whole", individual="" if hyper.effective_steps else learned)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s, μ = self.settings, self.hyper.mu
        if s.optimizer != "sgd":
            raise ConfigurationError(
                "optimizer: 'fednova' needs 'sgd', whose updates are weighted sums of gradients (found: "
                f"'{s.optimizer}')"
            )
        if s.learning_rate * μ >= 1:
            raise ConfigurationError(
                f"fednova.mu: learning-rate times μ must be below 1, or steps overshoot the received model (found: "
                f"{s.learning_rate:g} · {μ:g})"
            )

    def train_arguments(self, round: Round, cohort: Sequence[str]) -> dict[str, Any]:
        """Return τ_eff, which every client receives."""
        if self.hyper.effective_steps:
            return {"steps": self.hyper.effective_steps}
        counts = [self.clients.trained_on(self.clients[client]) for client in cohort]
        norms = [normaliser(self.settings, self.hyper, count, round.number) for count in counts]
        weights = self.clients.weights(self.clients[client] for client in cohort)
        return {"steps": float(np.average(norms, weights=weights))}
