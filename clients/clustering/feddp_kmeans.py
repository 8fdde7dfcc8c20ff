"""FedDP-KMeans, client side (Scott, thesis, algorithm 11): the three exchanges of FedDP-Init.

Phase ``outer`` returns the sum of the points' outer products. Phase ``weigh`` receives an orthonormal basis of the data
subspace and the server's points in it, and returns how many of the client's points are nearest to each. Phase
``locate`` receives the basis and centres in the subspace, and returns sums and counts of the clusters in the original
space. The phases take the arguments of ``lloyd`` (:class:`florilegium.clients.clustering.kmeans.KMeansClient`).
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.clustering.kmeans import OWN_SUMS, KMeansClient
from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.models.clustering import nearest
from florilegium.models.parameters import Arrays


class FedDPKMeansClient(KMeansClient):
    """Takes part in finding initial centres (FedDP-Init), and in the steps of FedDP-Lloyds."""

    training = OWN_SUMS

    @phase
    def outer(
        self, arrays: Arrays, *, radius: float | None = None, bounds: list[float] | None = None,
        scales: list[float] | None = None, shares: int = 1,
    ) -> Answer:  # fmt: skip
        """Return ``outer`` (d(d+1)/2,): the entries of Σ ppᵀ on and above the diagonal, row by row."""
        points = self.points(radius)
        self.check_revealing(np.zeros(len(points), np.int64), "products")
        upper = (points.T @ points)[np.triu_indices(points.shape[1])]
        return self.guarded({"outer": upper}, bounds, scales, shares)

    @phase
    def weigh(
        self, arrays: Arrays, *, radius: float | None = None, bounds: list[float] | None = None,
        scales: list[float] | None = None, shares: int = 1,
    ) -> Answer:  # fmt: skip
        """Return ``weights`` (s,): how many points, projected by ``basis`` (d, q), are nearest to each of ``points``.

        ``points`` (s, q) are the server's points in the subspace.
        """
        labels, _ = nearest(self.points(radius) @ arrays["basis"], arrays["points"])
        weights = np.bincount(labels, minlength=len(arrays["points"])).astype(float)
        return self.guarded({"weights": weights}, bounds, scales, shares)

    @phase
    def locate(
        self, arrays: Arrays, *, radius: float | None = None, bounds: list[float] | None = None,
        scales: list[float] | None = None, shares: int = 1,
    ) -> Answer:  # fmt: skip
        """Return ``sums`` (k, d) and ``counts`` (k,) of the clusters around ``centers`` (k, q) in the subspace."""
        points, centers = self.points(radius), arrays["centers"]
        labels, squares = nearest(points @ arrays["basis"], centers)
        close = squares <= (self.hyper.margin or np.inf) ** 2
        self.check_revealing(np.where(close, labels, -1))
        points, labels = points[close], labels[close]
        return self.guarded(self.clusters(points, labels, len(centers)), bounds, scales, shares)
