"""ServerLloyds, server side: k-means on the server's points, then FedDP-Lloyds (Scott, thesis, section 6.5)."""

from __future__ import annotations

import numpy as np
from flwr.serverapp import Grid

from models.clustering import Array
from strategies.kmeans import KMeans


class ServerLloyds(KMeans):
    """Starts from a clustering of the server's points."""

    def initialise(self, grid: Grid) -> Array:
        """Cluster them; no client is asked."""
        return self.cluster(self.points, np.ones(len(self.points)))
