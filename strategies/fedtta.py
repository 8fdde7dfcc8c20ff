"""FedTTA, server side: federated averaging of a network and of the loss that it adapts with (Ye et al. 2024).

Sends and receives the network's arrays and, with the prefix ``adaptation.``, those of the network φ behind the loss.
"""

from __future__ import annotations

from florilegium.clients.fedtta import PREFIX
from florilegium.clients.hyper.subspace import FedTTAHyper
from florilegium.models.mlp import adaptation_network
from florilegium.models.parameters import Arrays, get_arrays
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class FedTTA(FedAvg):
    """FedAvg of the network and of φ, which computes the loss for its adaptation."""

    messages = Messages("sum", features="whole")
    hyper: FedTTAHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays, and those of a newly initialised φ."""
        φ = adaptation_network(self.task.outputs[0], self.hyper.width, self.settings.seed)
        return arrays | {PREFIX + name: array for name, array in get_arrays(φ).items()}
