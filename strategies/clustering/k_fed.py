"""k-FED, server side: one exchange, a clustering of the clients' own centres (Dennis et al. 2021). Not private.

Received: each client's centres (k', d) and which of these rows it has found, (k',).
"""

from __future__ import annotations

from florilegium.models.clustering import Array
from florilegium.models.kfed import merge_centers
from florilegium.strategies.clustering.budget import Query
from florilegium.strategies.clustering.kmeans import KMeans, protects_itself
from florilegium.strategies.core.round import Round


class KFed(KMeans):
    """Merges what the clients have found alone."""

    privacy_gap = staticmethod(protects_itself)

    refines = False

    def queries(self, steps: int) -> list[Query]:
        """Nothing is released with noise."""
        return []

    def initialise(self, round: Round) -> Array:
        """Ask every client for its centres and merge them."""
        outcome = round.ask("cluster", round.sample(), reduce="stack")
        local = zip(outcome.arrays["centers"], outcome.arrays["found"], strict=True)
        return merge_centers([centers[found > 0] for centers, found in local], self.k, self.rng("merge"))
