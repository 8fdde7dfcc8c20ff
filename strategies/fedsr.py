"""FedSR, server side (Nguyen et al. 2022): FedAvg of the model and of the representation's own parameters."""

from __future__ import annotations

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.federated import FedSRHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.models.representation import build_representation
from florilegium.strategies.core.cohort import sums_of_updates, whole_network
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.round import Round
from florilegium.strategies.fedavg import FedAvg


class FedSR(FedAvg):
    """FedAvg of the model, and of the representation's parameters beside it."""

    privacy_gap = staticmethod(sums_of_updates)
    transfer_gap = staticmethod(whole_network)

    hyper: FedSRHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; initialise the representation's parameters."""
        classes, features = classifier_shape(arrays, "fedsr")
        representation = build_representation(features, classes, self.settings.seed)
        self.beside = {BESIDE + name: array for name, array in get_arrays(representation).items()}
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Average the clients' parameters of the representation."""
        self.beside = {
            name: (array + outcome.arrays[name] / outcome.weight).astype(array.dtype)
            for name, array in self.beside.items()
        }
