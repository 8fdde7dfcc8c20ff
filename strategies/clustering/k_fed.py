"""k-FED, server side: one exchange, then a clustering of the clients' centres (Dennis et al. 2021). Not private.

Receives from each client its centres (k', d), and which of these rows are centres, (k',).
"""

from __future__ import annotations

from dataclasses import replace

from florilegium.clients.core.wire import Reply
from florilegium.models.clustering import Array
from florilegium.models.kfed import merge_centers
from florilegium.models.parameters import Arrays
from florilegium.strategies.clustering.budget import Query
from florilegium.strategies.clustering.kmeans import OWN_SUMS, KMeans
from florilegium.strategies.clustering.ranges import check_centers, far_away
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.expected import UNUSABLE


class KFed(KMeans):
    """Merges the centres that clients have found in their own points."""

    messages = replace(OWN_SUMS, individual="the server needs the centres of single clients")
    refines = False

    def queries(self, steps: int) -> list[Query]:
        """Return no queries, since no sums are released with noise."""
        return []

    def check_reply(self, phase: str, sent: Arrays, reply: Reply) -> None:
        """Raise ``ValueError`` if a client has no centre, or one outside of the range of the data."""
        if phase != "cluster":
            return
        for row, client in enumerate(reply.clients):
            found = reply.arrays["found"][row] > 0
            if not found.any():
                raise ValueError(f"client {client} returned no centre, at least 1 of its {len(found)} rows must be one")
            check_centers(self.spec, client, reply.arrays["centers"][row][found])

    def initialise(self, round: Round) -> Array:
        """Ask the cohort's clients for their centres; return k merged centres."""
        rows = self.hyper.local_k or self.hyper.k
        outcome = round.ask(
            "cluster", round.sample(), reduce="stack", shapes={"centers": (rows, self.dimension), "found": (rows,)}
        )  # fmt: skip
        rows_of = zip(outcome.arrays["centers"], outcome.arrays["found"], strict=True)
        local = dict(zip(outcome.clients, (centers[found > 0] for centers, found in rows_of), strict=True))
        if far := far_away([*local], [*local.values()]):
            round.skip("cluster", {client: f"{UNUSABLE}: {why}" for client, why in far.items()})
        return merge_centers(
            [centers for client, centers in local.items() if client not in far], self.k, self.rng("merge")
        )
