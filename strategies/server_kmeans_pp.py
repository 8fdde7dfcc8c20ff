"""ServerKMeans++, server side: k-means++ on the server's points, then FedDP-Lloyds (Scott, thesis, section 6.5)."""

from __future__ import annotations

import numpy as np
from flwr.serverapp import Grid

from models.clustering import Array
from strategies.kmeans import KMeans


class ServerKMeansPP(KMeans):
    """Starts from k of the server's points, far from each other."""

    def initialise(self, grid: Grid) -> Array:
        """Draw k points by k-means++; no client is asked."""
        from sklearn.cluster import kmeans_plusplus

        centers, _ = kmeans_plusplus(self.points, self.k, random_state=int(self.rng("k-means").integers(2**31)))
        return np.asarray(centers, np.float64)
