"""Optimal, server side: k-means of all clients' points in one place, the bound that no federated method beats.

Neither federated nor private: in a simulation the server reads the points itself.
"""

from __future__ import annotations

import numpy as np
from flwr.serverapp import Grid

from common.errors import ConfigurationError
from models.clustering import Array
from partitions.clientdata import simulated
from partitions.federation import federate
from strategies.kmeans import KMeans
from strategies.kmeans_budget import Query


class Optimal(KMeans):
    """Clusters all points centrally."""

    refines = False

    def queries(self, steps: int) -> list[Query]:
        """Nothing is released with noise."""
        return []

    def initialise(self, grid: Grid) -> Array:
        """Cluster the points of all clients; none is asked."""
        if self.roster.deployed:
            raise ConfigurationError("method: 'optimal' needs all points in one place; devices keep theirs")
        federation, dataset = federate(self.settings)
        data = (simulated(federation, dataset, int(client)).train for client in self.trainable())
        points = np.concatenate([examples.x.flatten(1).double().numpy() for examples in data])
        return self.cluster(points, np.ones(len(points)))
