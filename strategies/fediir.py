"""FedIIR, server side (Guo et al. 2023): FedAvg that also knows the mean gradient of the clients' classifiers.

A round has two exchanges with its cohort: ``gradient`` (the model out, Σ of the classifier's gradients back), after
which ḡ ← m·ḡ + (1 − m)·mean, from ḡ = 0; and ``train`` (model and ḡ out, updates back).
"""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from clients.hyper import FedIIRHyper
from clients.wire import BESIDE
from models.blocks import last_blocks, of_blocks
from models.parameters import Arrays
from strategies.fedavg import FedAvg


class FedIIR(FedAvg):
    """FedAvg of clients that align the gradients of their classifiers."""

    hyper: FedIIRHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; ḡ begins at zero."""
        classifier = of_blocks(arrays, last_blocks(arrays, 1, "fediir"))
        self.beside = {BESIDE + name: np.zeros_like(array) for name, array in classifier.items()}
        return arrays

    def privacy_gap(self) -> str:
        """Return what is not protected."""
        return "the mean gradient of the classifier is sent besides"

    def train_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Renew ḡ, then train."""
        cohort, m = self.sample(server_round), self.hyper.momentum
        outcome = self.exchange(grid, cohort, server_round, "gradient", reduce="sum", arrays=arrays)
        self.beside = {
            name: (m * past + (1 - m) * outcome.arrays[name] / len(outcome.clients)).astype(past.dtype)
            for name, past in self.beside.items()
        }
        return super().train_round(server_round, arrays, grid)
