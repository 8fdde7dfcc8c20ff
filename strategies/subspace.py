"""Models in a random subspace, server side: θ₀ and P never travel, and the server needs neither."""

from __future__ import annotations

from typing import Any

from clients.hyper import SubspaceHyper
from common.errors import ConfigurationError
from models.networks import build
from models.parameters import Arrays
from models.subspace import check_dimensions
from partitions.datasets import find_spec
from strategies.fedavg import FedAvg
from strategies.run_folder import Checkpoint


class Subspace(FedAvg):
    """FedAvg of what makes a point of the subspace."""

    hyper: SubspaceHyper

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.spec = find_spec(self.settings.dataset)
        network = build(self.settings.model, self.spec.shape, self.spec.classes, self.settings.seed)
        d = sum(parameter.numel() for parameter in network.parameters())
        try:
            check_dimensions(self.hyper.expansion, self.hyper.dimensions, d)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self.settings.method}.{error}") from error

    @classmethod
    def transfer_gap(cls, hyper: Any) -> str:
        """Return what is missing."""
        return "what is learned is no network, but a point of a subspace or what makes one"

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Refuse ``init``: θ₀ is drawn, from the run's seed, wherever it is needed."""
        raise ConfigurationError(f"init: method '{self.settings.method}' starts from θ₀, which the seed alone makes")
