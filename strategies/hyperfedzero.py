"""HyperFedZero, server side (Zhou et al. 2025): FedAvg of the distribution extractor and the hypernetwork.

The network of ``model`` is never sent: each client makes its parameters with the two, for every input anew.
"""

from __future__ import annotations

from florilegium.clients.core.network import check_nothing_frozen, network_for
from florilegium.clients.hyper.zero_shot import HyperFedZeroHyper
from florilegium.clients.hyperfedzero import make_network
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, get_arrays, shapes_of
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.generated import HYPERNETWORK
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.run_folder import Checkpoint


class HyperFedZero(FedAvg):
    """FedAvg of what makes the parameters of a network."""

    messages = Messages("sum", step="mean", features=HYPERNETWORK)
    hyper: HyperFedZeroHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s, spec = self.settings, dataset_of(self.settings)
        check_nothing_frozen(network_for(spec, s, s.seed), s.model, s.method)
        self._initial = get_arrays(make_network(s, spec, self.hyper, s.seed))

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the initial parameters of extractor and hypernetwork."""
        return self._initial

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Start from another run's extractor and hypernetwork."""
        if shapes_of(trained.arrays) != shapes_of(self._initial):
            raise ConfigurationError(
                f"init: run '{self.settings.init}' has another extractor or hypernetwork than this run would have; "
                "method, model and hyperfedzero.* must agree"
            )
        return trained.arrays
