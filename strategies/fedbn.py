"""FedBN, server side (Li et al. 2021).

Sends and receives all arrays of the network except those of batch-norm layers, and averages them as in FedAvg.
"""

from __future__ import annotations

from florilegium.clients.core.network import network_for
from florilegium.common.errors import ConfigurationError
from florilegium.models.batch_norm import norms_of
from florilegium.models.parameters import Arrays
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg of all arrays except those of batch-norm layers."""

    messages = Messages("sum", step="mean", features="batch norm is each client's own")

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays without those of batch-norm layers."""
        s, spec = self.settings, dataset_of(self.settings)
        norms = norms_of(network_for(spec, s, s.seed))
        if not norms:
            raise ConfigurationError(f"model: '{s.model}' has no batch norm to keep; use cnn-bn or resnet18 with fedbn")
        if s.init:
            raise ConfigurationError(
                "init: with fedbn each client has its own batch norm, which starts from the seed, so that a trained "
                "one could not be used; leave init out"
            )
        return {name: array for name, array in arrays.items() if name.rpartition(".")[0] not in norms}
