"""SpherePacking, server side: centres spread over a ball of radius Δ, then FedDP-Lloyds (Scott, thesis, D.7.3).

Client: KMeansClient (``clients/clustering/kmeans.py``).
"""

from __future__ import annotations

from florilegium.models.clustering import Array
from florilegium.models.sphere_packing import sphere_packing
from florilegium.strategies.clustering.kmeans import KMeans, protects_itself
from florilegium.strategies.core.round import Round


class SpherePacking(KMeans):
    """Starts from centres that depend only on the data's radius and dimension."""

    privacy_gap = staticmethod(protects_itself)

    def initialise(self, round: Round) -> Array:
        """Return centres from a sphere packing; no client is asked."""
        return sphere_packing(self.radius, self.points.shape[1], self.k, self.rng("packing"))
