"""FedIIR, server side (Guo et al. 2023): FedAvg that also knows the mean gradient of the clients' classifiers.

A round has two exchanges with its cohort: ``gradient`` (the model out, Σ of the classifier's gradients back), after
which ḡ ← m·ḡ + (1 − m)·mean, from ḡ = 0; and ``train`` (model and ḡ out, updates back).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.federated import FedIIRHyper
from florilegium.models.blocks import last_blocks, of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import whole_network
from florilegium.strategies.core.round import Round
from florilegium.strategies.fedavg import FedAvg


class FedIIR(FedAvg):
    """FedAvg of clients that align the gradients of their classifiers."""

    transfer_gap = staticmethod(whole_network)

    hyper: FedIIRHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; ḡ begins at zero."""
        classifier = of_blocks(arrays, last_blocks(arrays, 1, "fediir"))
        self.beside = {BESIDE + name: np.zeros_like(array) for name, array in classifier.items()}
        return arrays

    @staticmethod
    def privacy_gap(hyper: Any) -> str:
        """Return what is not protected."""
        return "the mean gradient of the classifier is sent besides"

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Renew ḡ, then train."""
        m = self.hyper.momentum
        outcome = round.ask("gradient", round.sample(), send=model, reduce="sum")
        self.beside = {
            name: (m * past + (1 - m) * outcome.arrays[name] / len(outcome.clients)).astype(past.dtype)
            for name, past in self.beside.items()
        }
        return super().train_round(round, model)
