"""SpherePacking, server side: centres spread out over the data's ball, then FedDP-Lloyds (Scott, thesis, D.7.3)."""

from __future__ import annotations

from flwr.serverapp import Grid

from models.clustering import Array
from models.packing import sphere_packing
from strategies.kmeans import KMeans


class SpherePacking(KMeans):
    """Starts from centres that know the data's radius and dimension only."""

    def initialise(self, grid: Grid) -> Array:
        """Pack spheres; no client is asked."""
        return sphere_packing(self.radius, self.points.shape[1], self.k, self.rng("packing"))
