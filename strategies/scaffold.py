"""SCAFFOLD, server side (Karimireddy et al. 2020, Algorithm 1): FedAvg with a control variate beside the model.

Sends the model x and the control variate c. Updates x as FedAvg does, with η_g = ``server-learning-rate``, and
c ← c + |S|/N · mean (c_i⁺ − c_i), over the cohort S of N clients. The paper's means are unweighted:
``weighting = "uniform"``.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.federated import ScaffoldHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class Scaffold(FedAvg):
    """FedAvg with control variates, which estimate the mean gradient of all clients."""

    messages = Messages(
        "sum",
        features="whole",
        beside="control variates change as much as gradients do, and would be clipped with the model",
    )
    hyper: ScaffoldHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s = self.settings
        if self.hyper.option == 2 and (s.optimizer != "sgd" or s.momentum or s.max_grad_norm):
            raise ConfigurationError(
                "scaffold.option: 2 takes steps of plain SGD for the mean gradient; use optimizer = 'sgd', momentum = "
                f"0 and max-grad-norm = 0 (found: '{s.optimizer}', {s.momentum:g}, {s.max_grad_norm:g}), or option 1"
            )

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; set c to zero."""
        self.beside = {BESIDE + name: np.zeros_like(array) for name, array in arrays.items()}
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Update c; clients return no control variates for buffers, which have no gradient."""
        share = len(outcome.clients) / len(self.clients.enrolled())
        self.beside |= {
            name: (self.beside[name] + share * change / outcome.weight).astype(np.float32)
            for name, change in outcome.arrays.items()
            if name in self.beside
        }
