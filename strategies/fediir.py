"""FedIIR, server side (Guo et al. 2023): FedAvg with a running mean ḡ of the gradients of the clients' classifiers.

A round has two exchanges with its cohort. ``gradient`` sends the model and receives the sum of the classifier's
gradients; then ḡ ← m·ḡ + (1 − m)·mean, starting from ḡ = 0. ``train`` sends the model and ḡ, and receives updates.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.federated import FedIIRHyper
from florilegium.models.blocks import last_blocks, of_blocks
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class FedIIR(FedAvg):
    """FedAvg whose clients regularise their classifiers' gradients towards the mean gradient."""

    messages = Messages("sum", features="whole", beside="the mean gradient of the classifier is sent besides")
    hyper: FedIIRHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; set ḡ to zero."""
        classifier = of_blocks(arrays, last_blocks(self.federation.network, 1, "fediir"))
        self.beside = {BESIDE + name: np.zeros_like(array) for name, array in classifier.items()}
        return arrays

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Update ḡ in a first exchange, then train as in FedAvg."""
        m = self.hyper.momentum
        cohort = round.sample()
        outcome = round.ask("gradient", cohort, send=model, reduce="sum", shapes=shapes_of(self.beside))
        self.beside = {
            name: (m * past + (1 - m) * outcome.arrays[name] / len(outcome.clients)).astype(past.dtype)
            for name, past in self.beside.items()
        }
        return super().train_round(round.keeping(cohort), model)
