"""FL+HC, server side (Briggs et al. 2020): FedAvg for n rounds, one hierarchical clustering, then FedAvg per cluster.

In round n + 1 all clients that can train send their updates of the global model. Agglomerative clustering of these
updates gives the clusters, which are then fixed; their models start from the global one, moved by the mean of their
clients' updates. New clients go to the cluster whose updates theirs resembles most.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, fcluster, linkage
from scipy.spatial.distance import squareform

from florilegium.clients.families.clustered import of_clusters
from florilegium.clients.hyper.clustered import FLHCHyper
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.clustered import NO_COMMON_NETWORK
from florilegium.strategies.families.splits import ROOT, Matrix, Splits, cosines, gram

log = logging.getLogger("flwr")


class FLHC(Splits):
    """One-shot clustering of clients by their updates."""

    messages = Messages("single", features=NO_COMMON_NETWORK)
    hyper: FLHCHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.expect_clustering_after(self.hyper.warmup_rounds)

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Train the clusters; in round n + 1 find them, by a training of all clients."""
        if round.number != self.hyper.warmup_rounds + 1:
            return super().train_round(round, model)
        θ, everyone = of_clusters(model)[ROOT], self.members(ROOT)
        updates = round.require(self.updates(round, everyone, θ), len(everyone))
        clusters = hierarchical(gram(updates.arrays), self.hyper)
        log.info("round %d: %d clusters of %d clients", round.number, clusters.max() + 1, len(clusters))
        return self.split(ROOT, θ, updates, clusters, model)


def hierarchical(products: Matrix, hyper: FLHCHyper) -> NDArray[np.int64]:
    """Return the cluster 0, 1, … of each update, by agglomerative clustering.

    Args:
        products: inner products of the updates, (n, n).
        hyper: metric, linkage, and threshold or number of clusters.
    """
    if len(products) == 1:
        return np.zeros(1, dtype=np.int64)
    squares = np.diag(products)
    if hyper.metric == "cosine":
        distances = 1 - cosines(products)
    else:
        distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * products, 0))
    tree = linkage(squareform(distances, checks=False), hyper.linkage)
    if hyper.clusters:
        chosen: NDArray[np.int64] = cut_tree(tree, n_clusters=min(hyper.clusters, len(products)))[:, 0]
        return chosen
    height = hyper.threshold * (tree[-1, 2] if hyper.relative else 1.0)
    found: NDArray[np.int64] = np.unique(fcluster(tree, height, "distance"), return_inverse=True)[1]
    return found
