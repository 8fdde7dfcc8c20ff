"""CFL, server side (Sattler et al. 2019): clusters are split in two where their clients pull in different directions.

Every cluster is trained as in FedAvg. Where it has come to rest, ‖mean Δθᵢ‖ < ε₁, but its clients have not,
max ‖Δθᵢ‖ > ε₂, all its clients send their updates of its model. These are divided into the two sets between which the
largest cosine similarity α is smallest (the paper's Algorithm 1, which is single linkage). They become clusters if
√((1 − α)/2) > γ_max.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from florilegium.clients.core.wire import UPDATE_NORM
from florilegium.clients.families.clustered import of_clusters
from florilegium.clients.hyper.clustered import CFLHyper
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.clustered import NO_COMMON_NETWORK
from florilegium.strategies.families.splits import Matrix, Splits, cosines, gram

log = logging.getLogger("flwr")


class CFL(Splits):
    """Recursive bipartition of clusters."""

    messages = Messages("single", features=NO_COMMON_NETWORK)
    hyper: CFLHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._peak = 0.0  # largest norm of a mean update so far

    def review(self, round: Round, before: Arrays, model: Arrays, outcomes: Mapping[int, Outcome]) -> Arrays:
        """Split the clusters that have come to rest while their clients have not."""
        h, models = self.hyper, of_clusters(before)
        for cluster, outcome in outcomes.items():
            mean = float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in outcome.arrays.values())))
            mean /= outcome.weight
            told = outcome.metrics.get(UPDATE_NORM, np.zeros(1))
            largest = float(np.max(told, where=~np.isnan(told), initial=0.0))
            self._peak = max(self._peak, mean)
            unit = self._peak if h.relative else 1.0
            members = self.members(cluster)
            if mean >= h.epsilon_1 * unit or largest <= h.epsilon_2 * unit or len(members) < h.min_clients:
                continue
            updates = self.updates(round, members, models[cluster])
            if len(updates.clients) < 2:
                continue
            halves, α = bipartition(cosines(gram(updates.arrays)))
            log.info("round %d: cluster %d, largest similarity across its halves %.4g", round.number, cluster, α)
            if np.sqrt((1 - α) / 2) > h.gamma:
                model = self.split(cluster, models[cluster], updates, halves, model)
        return model

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the tree, the clients' places and the largest mean update, for checkpoints."""
        arrays, facts = super().state()
        return arrays, facts | {"peak": self._peak}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        super().restore(arrays, facts)
        self._peak = facts["peak"]


def bipartition(similarities: Matrix) -> tuple[NDArray[np.int64], float]:
    """Return the division into two sets between which the largest similarity is smallest, and this similarity α.

    Args:
        similarities: cosine similarities, (n, n), n ≥ 2.

    Returns:
        The set of each row, 0 or 1; and α, −1 to 1.
    """
    tree = linkage(squareform(1 - similarities, checks=False), "single")
    halves: NDArray[np.int64] = cut_tree(tree, n_clusters=2)[:, 0]
    return halves, float(np.clip(similarities[halves == 0][:, halves == 1].max(), -1, 1))
