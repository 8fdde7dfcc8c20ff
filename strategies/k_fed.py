"""k-FED, server side: one exchange, a clustering of the clients' own centres (Dennis et al. 2021). Not private.

Received: each client's centres (k', d) and which of these rows it has found, (k',).
"""

from __future__ import annotations

from flwr.serverapp import Grid

from models.clustering import Array
from models.kfed import merge_centers
from strategies.kmeans import KMeans
from strategies.kmeans_budget import Query


class KFed(KMeans):
    """Merges what the clients have found alone."""

    refines = False

    def queries(self, steps: int) -> list[Query]:
        """Nothing is released with noise."""
        return []

    def initialise(self, grid: Grid) -> Array:
        """Ask every client for its centres and merge them."""
        outcome = self.exchange(grid, self.sample(1), 1, "cluster", reduce="stack")
        local = zip(outcome.arrays["centers"], outcome.arrays["found"], strict=True)
        return merge_centers([centers[found > 0] for centers, found in local], self.k, self.rng("merge"))
