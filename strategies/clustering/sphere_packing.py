"""SpherePacking, server side: centres spread over a cube, then FedDP-Lloyds (Scott, thesis, D.7.3).

The cube's half-side is the largest coordinate of the server's points, which the thesis calls the data radius there.

Client: KMeansClient (``clients/clustering/kmeans.py``).
"""

from __future__ import annotations

import numpy as np

from florilegium.models.clustering import Array
from florilegium.models.sphere_packing import sphere_packing
from florilegium.strategies.clustering.kmeans import OWN_SUMS, KMeans
from florilegium.strategies.core.round import Round


class SpherePacking(KMeans):
    """Starts from centres that depend only on the data's largest coordinate and dimension."""

    messages = OWN_SUMS

    def initialise(self, round: Round) -> Array:
        """Return centres from a sphere packing; no client is asked."""
        half_side = float(np.abs(self.points).max())
        return sphere_packing(half_side, self.points.shape[1], self.k, self.rng("packing"))
