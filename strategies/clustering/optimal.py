"""Optimal, server side: k-means of all clients' points in one place, the reference for the federated methods.

It is neither federated nor private: in a simulation the server reads the clients' points itself.

Client: KMeansClient (``clients/clustering/kmeans.py``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from florilegium.common.errors import ConfigurationError
from florilegium.models.clustering import Array
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.clustering.budget import Query
from florilegium.strategies.clustering.kmeans import OWN_SUMS, KMeans
from florilegium.strategies.core.round import Round


class Optimal(KMeans):
    """Clusters all points centrally."""

    messages = replace(OWN_SUMS, individual="the server reads all points in one place")
    refines = False

    def queries(self, steps: int) -> list[Query]:
        """Return no queries, since no sums are released with noise."""
        return []

    def initialise(self, round: Round) -> Array:
        """Return the k-means centres of all clients' points, which the server reads itself."""
        if self.clients.deployed:
            raise ConfigurationError("method: 'optimal' needs all points in one place; devices keep theirs")
        federation, dataset = federate(self.settings)
        data = (simulated(federation, dataset, int(client)).train for client in self.trainable())
        points = np.concatenate([examples.x.flatten(1).double().numpy() for examples in data])
        return self.cluster(points, np.ones(len(points)))
