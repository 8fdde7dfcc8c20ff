"""Clustered federated learning, server side: several models, each averaged over the clients of its cluster.

The run's model is the set of all clusters' models (:mod:`florilegium.clients.families.clustered`). Each cluster is
averaged as in FedAvg: θ_j ← θ_j + η·Σ wᵢ·Δθᵢ / Σ wᵢ over its clients in the cohort, η = ``server-learning-rate``; a
cluster without clients in a cohort stays as it is.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.families.clustered import CLUSTER, named, of_clusters
from florilegium.models.parameters import Arrays, is_statistic
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.server_step import refuse_optimizers
from florilegium.strategies.exchange.evaluation import Evaluation
from florilegium.strategies.exchange.exchange import Outcome, joined
from florilegium.strategies.exchange.requests import Cohort, Group

log = logging.getLogger("flwr")


NO_COMMON_NETWORK = "the server has one network per cluster and none for all clients"
"""Why features cannot be transferred."""


def told_clusters(outcome: Outcome) -> NDArray[np.float64]:
    """Return the number of each client's cluster, (n,); NaN for clients that told none."""
    return outcome.metrics.get(CLUSTER, np.full(len(outcome.clients), np.nan))


class Clustered(CohortStrategy):
    """Base strategy of methods with a model for each cluster of clients."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        s = self.settings
        refuse_optimizers(s, "averages the models of each cluster")
        self._sizes: dict[str, int] = {}

    def moved(self, θ: Arrays, sums: Arrays, weight: float) -> Arrays:
        """Return θ + η·sums/weight; running statistics of batch norm move by the whole mean."""
        η = self.settings.server_learning_rate
        update = {name: sums[name] / weight for name in θ}
        return {n: (a + (update[n] if is_statistic(n) else η * update[n])).astype(a.dtype) for n, a in θ.items()}

    def figures(self, outcome: Outcome) -> Evaluation:
        """Return the figures of each group; a client's cluster is in its row alone, since it has no mean."""
        clusters = np.nan_to_num(told_clusters(outcome), nan=-1)
        outcome.metrics.pop(CLUSTER, None)
        found = super().figures(outcome)
        if not found.rows:
            return found
        sizes = Counter(int(cluster) for cluster in clusters)
        self._sizes = {str(cluster): sizes[cluster] for cluster in sorted(sizes)}
        rows = [{**row, CLUSTER: int(cluster)} for row, cluster in zip(found.rows, clusters, strict=True)]
        return Evaluation(found.figures, rows)

    def report(self) -> dict[str, Any]:
        """Return the number of clients in each cluster at the last evaluation, for ``summary.json``."""
        return {"clusters": self._sizes}


class Assigned(Clustered):
    """Strategy of methods in which the server knows each client's cluster and sends it that cluster's model alone.

    Attributes:
        places: the cluster of each client that has been assigned to one.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.places: dict[str, int] = {}

    @abstractmethod
    def locate(
        self, round: Round, clients: Sequence[str], model: Arrays, *, evaluation: bool
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Return the clusters of clients, and the error of each client for which none could be found.

        With ``evaluation``, nothing is remembered, and the bytes of exchanges are not counted.
        """

    def review(self, round: Round, before: Arrays, model: Arrays, outcomes: Mapping[int, Outcome]) -> Arrays:
        """Return the models after a round's training, given each cluster's outcome. By default: as they are."""
        return model

    def expect_clustering_after(self, rounds: int) -> None:
        """Log a warning if the run ends before a clustering that follows ``rounds`` rounds."""
        if 0 < self.settings.rounds <= rounds:
            log.warning(
                "%s.warmup-rounds is %d and rounds is %d: the run ends before the clustering, and is FedAvg",
                self.settings.method, rounds, self.settings.rounds,
            )  # fmt: skip

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the initial models: one cluster, of all clients."""
        return named(0, arrays)

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the clients of the cohort train the models of their clusters; average each cluster's."""
        cohort = round.sample()
        places, failures = self.locate(round, cohort, model, evaluation=False)
        before, clusters = of_clusters(model), grouped(places)
        groups = [
            Group(Cohort(members, math.ceil(len(members) * cohort.wanted / len(cohort))), before[cluster])
            for cluster, members in clusters.items()
        ]
        outcomes = dict(zip(clusters, round.ask_groups("train", groups, reduce="delta"), strict=True))
        whole = round.require(joined([Outcome([], {}, {}, failures), *outcomes.values()]), cohort.wanted)
        log.info(
            "round %d: loss %.4g, clients %d, clusters %d",
            round.number, whole.mean("loss"), len(whole.clients), len(before),
        )  # fmt: skip
        outcomes = {cluster: outcome for cluster, outcome in outcomes.items() if outcome.clients}
        after = model.copy()
        for cluster, outcome in outcomes.items():
            after |= named(cluster, self.moved(before[cluster], outcome.arrays, outcome.weight))
        return self.review(round, model, after, outcomes)

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have each client test the model of its cluster."""
        places, failures = self.locate(round, clients, model, evaluation=True)
        models, clusters = of_clusters(model), grouped(places)
        groups = [Group(members, models[cluster]) for cluster, members in clusters.items()]
        outcomes = round.ask_groups("test", groups, reduce="sum", evaluation=True)
        for cluster, outcome in zip(clusters, outcomes, strict=True):
            outcome.metrics[CLUSTER] = np.full(len(outcome.clients), float(cluster))
        return round.require(joined([Outcome([], {}, {}, failures), *outcomes], clients), len(clients))

    def largest(self, model: Arrays) -> int:
        """Return the cluster with most assigned clients, for clients that no other is known for."""
        sizes = Counter(self.places.values())
        return max(of_clusters(model), key=lambda cluster: sizes[cluster])

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the clients' clusters, for checkpoints."""
        return {}, {"places": self.places.copy()}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the clients' clusters."""
        self.places = dict(facts["places"])


def grouped(places: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the clients at each place, places in ascending order."""
    groups: dict[int, list[str]] = {place: [] for place in sorted({*places.values()})}
    for client, place in places.items():
        groups[place].append(client)
    return groups
