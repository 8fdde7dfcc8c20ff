"""FedDBE, server side (Zhang et al. 2023, Algorithm 1): FedAvg, with a consensus mean of representations.

Before the first round all clients that may train are sent the model, and return the sums of their examples'
representations (phase ``representation``); the consensus mean is z̄ = Σ n_i z̄_i / Σ n_i. It stays the same, and is sent
beside the model in every round.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.feddbe import MEAN
from florilegium.clients.hyper.mixing import FedDBEHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class FedDBE(FedAvg):
    """FedAvg whose clients keep their representations near a common mean."""

    messages = Messages("sum", features="whole", beside="sums of representations are sent besides")
    hyper: FedDBEHyper

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Train as in FedAvg; before the first round, ask for the consensus mean."""
        if self.hyper.penalty and not self.beside:
            _, d = classifier_shape(self.federation.network, "feddbe")
            everyone = self.clients.online(self.trainable())
            outcome = round.ask("representation", everyone, send=model, reduce="sum", shapes={MEAN: (d,)})
            if outcome.examples:
                mean = outcome.arrays[MEAN] / outcome.examples
                self.beside = {BESIDE + MEAN: mean.astype(np.float32)}
        return super().train_round(round, model)
