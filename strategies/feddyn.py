"""FedDyn, server side (Acar et al. 2021, Algorithm 1): the clients' mean model, moved by the memory h of all updates.

Sends the global model θ^{t−1}; receives Σ_{k∈P_t} (θ_k − θ^{t−1}). With m clients in all:
h^t = h^{t−1} − α/m · Σ_{k∈P_t} (θ_k − θ^{t−1}); θ^t = mean_{k∈P_t} θ_k − h^t/α. h starts at zero. The paper's means are
unweighted: ``weighting = "uniform"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from florilegium.clients.hyper.federated import FedDynHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, is_statistic
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class FedDyn(FedAvg):
    """FedAvg with a server state that makes up for the clients' regularisers."""

    messages = Messages("sum", features="whole")
    hyper: FedDynHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s = self.settings
        if s.server_optimizer != "sgd" or s.server_momentum or s.server_learning_rate != 1:
            raise ConfigurationError(
                "server-optimizer: 'feddyn' has a server step of its own; use 'sgd' with server-momentum = 0 and "
                f"server-learning-rate = 1 (found: '{s.server_optimizer}', {s.server_momentum:g}, "
                f"{s.server_learning_rate:g})"
            )

        if s.secure_aggregation and s.weighting != "uniform":
            raise ConfigurationError(
                "weighting: with secure-aggregation 'feddyn' does not know all clients' numbers of examples; set it to "
                f"'uniform' (found: '{s.weighting}')"
            )

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; set h to zero. Running statistics have no regulariser, and no h."""
        self._h = {name: np.zeros(array.shape) for name, array in arrays.items() if not is_statistic(name)}
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Update h: a cohort's share of the clients' total weight is |P_t|/m with uniform weights."""
        total = self.clients.weight
        self._h = {name: h - self.hyper.alpha / total * outcome.arrays[name] for name, h in self._h.items()}

    def direction(self, update: Arrays) -> Arrays:
        """Return the mean update minus h/α."""
        return {name: Δ - self._h[name] / self.hyper.alpha for name, Δ in update.items()}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return h, for checkpoints."""
        return dict(self._h), {}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore h."""
        self._h = dict(arrays)
