"""FedDP-KMeans, server side (Scott, thesis, algorithms 11 and 12): initial centres (FedDP-Init), then FedDP-Lloyds.

FedDP-Init has three exchanges. 1: the noisy sum of all points' outer products gives the data subspace, its top
eigenvectors. 2: the noisy number of client points nearest to each of the server's points in that subspace is that
point's weight; weighted k-means of the server's points gives centres ξ_j in the subspace. 3: noisy sums and counts of
the clusters around ξ_j give centres in the original space.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from florilegium.models.clustering import Array, cost, elbow
from florilegium.models.kmeans import k_means
from florilegium.models.parameters import Arrays
from florilegium.strategies.clustering.budget import Query, init_queries, lloyds_queries
from florilegium.strategies.clustering.kmeans import OWN_SUMS, KMeans
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round

log = logging.getLogger("flwr")


class FedDPKMeans(KMeans):
    """Differentially private federated clustering with server data."""

    messages = OWN_SUMS
    chooses_k = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._weighted: Arrays = {}  # the server's points in the data subspace, and their noisy weights
        self._elbow: list[float] = []

    def queries(self, steps: int) -> list[Query]:
        """Return the sums that FedDP-Init asks for, then those of FedDP-Lloyds."""
        return init_queries(self.hyper, steps) + lloyds_queries(self.hyper, steps, self.hyper.lloyds_share)

    def initialise(self, round: Round) -> Array:
        """Return initial centres (k, d), from the three exchanges of FedDP-Init."""
        basis = self._subspace(self.ask(round, "outer", {})["outer"])
        projected = self.points @ basis
        weights = self.ask(round, "weigh", {"basis": basis, "points": projected})["weights"]
        self._weighted = {"points": projected, "weights": weights}
        heavy = self._heavy(projected, weights)
        if self.hyper.choose_k:
            self._choose(*heavy)
        ξ = self.cluster(*heavy)
        released = self.ask(round, "locate", {"basis": basis, "centers": ξ})
        return self.divide(released, "locate", ξ @ basis.T)

    def _subspace(self, upper: Array) -> Array:
        """Return the top eigenvectors (d, q) of the symmetric matrix with these entries on and above its diagonal.

        Noise on these entries is symmetric noise on the matrix, drawn once per pair of entries (Dwork et al. 2014).
        """
        d = self.points.shape[1]
        matrix = np.zeros((d, d))
        matrix[np.triu_indices(d)] = upper
        _, vectors = np.linalg.eigh(matrix, UPLO="U")
        return np.ascontiguousarray(vectors[:, ::-1][:, : self.hyper.dimensions or self.most])

    def _heavy(self, points: Array, weights: Array) -> tuple[Array, Array]:
        """Return the points with weight ≥ ``weight-threshold``, and their weights; at least the k heaviest points."""
        heavy = (weights >= self.hyper.weight_threshold) & (weights > 0)
        if heavy.sum() >= self.most:
            return points[heavy], weights[heavy]
        log.warning(
            "only %d of the server's points have a weight of kmeans.weight-threshold = %g; the heaviest %d are taken",
            int(heavy.sum()), self.hyper.weight_threshold, self.most,
        )  # fmt: skip
        order = np.argsort(-weights, kind="stable")[: self.most]
        return points[order], np.maximum(weights[order], 1.0)

    def _choose(self, points: Array, weights: Array) -> None:
        """Set k by the elbow method on the costs of 1 to ``choose-k`` clusters.

        This uses only weights that are already released, so it has no privacy cost.
        """
        self._elbow = [
            cost(points, weights, k_means(points, weights, k, self.hyper.restarts, self.rng("elbow", k)))
            for k in range(1, self.most + 1)
        ]
        self.k = elbow(self._elbow)
        log.info("k = %d is at the elbow of 1 to %d clusters", self.k, self.most)

    def report(self) -> dict[str, Any]:
        """Return the report of the base class, with the costs from which k was chosen."""
        facts = super().report()
        return {**facts, "kmeans": {**facts["kmeans"], **({"elbow": self._elbow} if self._elbow else {})}}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the base class's state, the weighted points, and the costs from which k was chosen."""
        _, facts = super().state()
        return self._weighted, {**facts, "elbow": self._elbow}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        super().restore(arrays, facts)
        self._weighted, self._elbow = dict(arrays), list(facts["elbow"])
