"""FedSR, server side (Nguyen et al. 2022): FedAvg of the model and of the representation's own parameters."""

from __future__ import annotations

from clients.hyper import FedSRHyper
from clients.wire import BESIDE
from models.blocks import classifier_shape
from models.parameters import Arrays, get_arrays
from models.representation import build_representation
from strategies.exchange import Outcome
from strategies.fedavg import FedAvg


class FedSR(FedAvg):
    """FedAvg of clients that keep their representations simple."""

    hyper: FedSRHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; the representation begins anew."""
        classes, features = classifier_shape(arrays, "fedsr")
        representation = build_representation(features, classes, self.settings.seed)
        self.beside = {BESIDE + name: array for name, array in get_arrays(representation).items()}
        return arrays

    def learn(self, outcome: Outcome) -> None:
        """Average the representation's own parameters."""
        self.beside = {
            name: (array + outcome.arrays[name] / outcome.weight).astype(array.dtype)
            for name, array in self.beside.items()
        }
