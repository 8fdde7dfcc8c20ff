"""ServerKMeans++, server side: k-means++ on the server's points, then FedDP-Lloyds (Scott, thesis, section 6.5).

Client: KMeansClient (``clients/clustering/kmeans.py``).
"""

from __future__ import annotations

import numpy as np

from florilegium.models.clustering import Array
from florilegium.strategies.clustering.kmeans import OWN_SUMS, KMeans
from florilegium.strategies.core.round import Round


class ServerKMeansPP(KMeans):
    """Starts from k of the server's points that are far from each other (k-means++)."""

    messages = OWN_SUMS

    def initialise(self, round: Round) -> Array:
        """Return k of the server's points, drawn by k-means++; no client is asked."""
        from sklearn.cluster import kmeans_plusplus

        centers, _ = kmeans_plusplus(self.points, self.k, random_state=int(self.rng("k-means").integers(2**31)))
        return np.asarray(centers, np.float64)
