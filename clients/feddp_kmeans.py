"""FedDP-KMeans, client side (Scott, thesis, algorithm 11): the three exchanges of FedDP-Init.

``outer``: answered is the sum of the points' outer products. ``weigh``: received are an orthonormal basis of the data
subspace and the server's points in it; answered is how many of the client's points are nearest to each. ``locate``:
received are the basis and centres in it; answered are sums and counts of the clusters in the original space.
"""

from __future__ import annotations

import numpy as np

from clients.base import Answer, phase
from clients.kmeans import KMeansClient
from clients.wire import Config
from models.clustering import nearest
from models.parameters import Arrays


class FedDPKMeansClient(KMeansClient):
    """Helps to find centres to start from, besides the steps of FedDP-Lloyds."""

    @phase
    def outer(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``outer`` (d(d+1)/2,): the entries of Σ ppᵀ on and above the diagonal, row by row."""
        points = self.points(config)
        return self.guarded({"outer": (points.T @ points)[np.triu_indices(points.shape[1])]}, config)

    @phase
    def weigh(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``weights`` (s,): the points nearest to each of ``points`` (s, q) under the ``basis`` (d, q)."""
        labels, _ = nearest(self.points(config) @ arrays["basis"], arrays["points"])
        return self.guarded({"weights": np.bincount(labels, minlength=len(arrays["points"])).astype(float)}, config)

    @phase
    def locate(self, arrays: Arrays, config: Config) -> Answer:
        """Answer ``sums`` (k, d) and ``counts`` (k,) of the clusters around ``centers`` (k, q) under the ``basis``."""
        points, centers = self.points(config), arrays["centers"]
        labels, squares = nearest(points @ arrays["basis"], centers)
        if self.hyper.margin:
            close = squares <= self.hyper.margin**2
            points, labels = points[close], labels[close]
        return self.guarded(self.clusters(points, labels, len(centers)), config)
