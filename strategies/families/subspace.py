"""Models in a random subspace, server side: θ₀ and P are never sent, and the server needs neither."""

from __future__ import annotations

from florilegium.clients.core.network import network_for
from florilegium.clients.hyper.subspace import SubspaceHyper
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays, trained
from florilegium.models.subspace import check_dimensions
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.run_folder import Checkpoint

SUBSPACE = "what is learned is no network, but a point of a subspace or what makes one"
"""Why features cannot be transferred."""


class Subspace(FedAvg):
    """FedAvg of a point of the subspace, or of a hypernetwork that makes one."""

    hyper: SubspaceHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.spec = dataset_of(self.settings)
        network = network_for(self.spec, self.settings, self.settings.seed)
        d = sum(parameter.numel() for parameter in trained(network).values())
        try:
            check_dimensions(self.hyper.expansion, self.hyper.dimensions, d)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.settings.method}.{error}") from error

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Raise :class:`ConfigurationError`: θ₀ is always drawn from the run's seed, so ``init`` is not possible."""
        raise ConfigurationError(
            f"init: method '{self.settings.method}' starts from θ₀, which depends on the seed alone"
        )
