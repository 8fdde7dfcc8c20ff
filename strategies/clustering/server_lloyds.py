"""ServerLloyds, server side: k-means on the server's points, then FedDP-Lloyds (Scott, thesis, section 6.5).

Client: KMeansClient (``clients/clustering/kmeans.py``).
"""

from __future__ import annotations

import numpy as np

from florilegium.models.clustering import Array
from florilegium.strategies.clustering.kmeans import OWN_SUMS, KMeans
from florilegium.strategies.core.round import Round


class ServerLloyds(KMeans):
    """Starts from the centres of a clustering of the server's points."""

    messages = OWN_SUMS

    def initialise(self, round: Round) -> Array:
        """Return the k-means centres of the server's points; no client is asked."""
        return self.cluster(self.points, np.ones(len(self.points)))
