"""FedTTA, server side: federated averaging of a network and of the loss it adapts by (Ye et al. 2024).

Sent and received: the network's arrays and, after ``adaptation.``, those of φ.
"""

from __future__ import annotations

from clients.fedtta import PREFIX
from clients.hyper import FedTTAHyper
from models.mlp import adaptation_network
from models.parameters import Arrays, get_arrays
from partitions.datasets import find_spec
from strategies.fedavg import FedAvg


class FedTTA(FedAvg):
    """FedAvg of network and φ."""

    hyper: FedTTAHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays and those of a new φ."""
        classes = find_spec(self.settings.dataset).classes
        φ = adaptation_network(classes, self.hyper.width, self.settings.seed)
        return arrays | {PREFIX + name: array for name, array in get_arrays(φ).items()}
