"""FedRoD, server side (Chen and Chao 2022, Algorithm 1): FedAvg of the model, and of a hypernetwork of heads."""

from __future__ import annotations

from collections.abc import Sequence

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.mixing import FedRoDHyper
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.models.personal_heads import build_head_network
from florilegium.strategies.core.cohort import sums_of_updates, whole_network
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.round import Round
from florilegium.strategies.fedavg import FedAvg


class FedRoD(FedAvg):
    """FedAvg of body and generic head, and of the hypernetwork that makes personal heads."""

    privacy_gap = staticmethod(sums_of_updates)
    transfer_gap = staticmethod(whole_network)

    hyper: FedRoDHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; initialise the hypernetwork."""
        shape = classifier_shape(arrays, "fedrod", biased=True)
        if self.hyper.personal_head == "hypernetwork":
            network = build_head_network(*shape, self.hyper.hidden_width, self.settings.seed)
            self.beside = {BESIDE + name: array for name, array in get_arrays(network).items()}
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Average the clients' hypernetworks."""
        self.beside = {
            name: (array + outcome.arrays[name] / outcome.weight).astype(array.dtype)
            for name, array in self.beside.items()
        }

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test; also send the hypernetwork."""
        return super().measure(round, clients, model | self.beside)
