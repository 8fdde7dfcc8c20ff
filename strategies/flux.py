"""FLUX, server side (Fenoglio et al. 2025): clusters of clients by descriptors of their data, after some FedAvg.

After ``flux.warmup-rounds`` rounds of FedAvg all clients that can train describe their data with the global model. The
descriptors are scaled and clustered by DBSCAN, whose radius ε is found at the elbow of the sorted distances to the
nearest neighbour; a client that it leaves alone is a cluster of its own. Every cluster then goes on from the global
model. Any other client, with or without labels, describes its inputs with the same global model and gets the cluster
whose mean label-agnostic descriptor is nearest.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist, squareform
from sklearn.cluster import DBSCAN

from florilegium.clients.core.network import network_for
from florilegium.clients.families.clustered import named, of_clusters
from florilegium.clients.flux import MOMENTS, dimensions
from florilegium.clients.hyper.clustered import FLUXHyper
from florilegium.models.blocks import body_and_classifier
from florilegium.models.clustering import elbow
from florilegium.models.dry_run import random_inputs
from florilegium.models.parameters import Arrays, part
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.clustered import NO_COMMON_NETWORK, Assigned

log = logging.getLogger("flwr")
Points = NDArray[np.float64]


class FLUX(Assigned):
    """One-shot clustering of clients by descriptors."""

    messages = Messages(
        "groups",
        features=NO_COMMON_NETWORK,
        individual="clients send descriptors of their data, and nothing protects these",
    )
    hyper: FLUXHyper

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.expect_clustering_after(self.hyper.warmup_rounds)
        self._extractor: Arrays = {}  # the global model that descriptors are made with; none before the clustering
        self._range: Points = np.zeros((2, 2))  # least and largest mean, least and largest standard deviation
        self._centers: Points = np.zeros((0, 2, 0))  # mean label-agnostic descriptors, scaled, (clusters, 2, l)

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Train the clusters, after finding them if the warm-up is over."""
        if round.number == self.hyper.warmup_rounds + 1:
            model = self._cluster(round, of_clusters(model)[0])
        return super().train_round(round, model)

    def _cluster(self, round: Round, θ: Arrays) -> Arrays:
        """Have all clients that can train describe their data; return a copy of θ for each cluster."""
        shape = (1 + dataset_of(self.settings).classes, 2, self._dimensions)
        outcome = round.ask(
            "describe", self.trainable(), send=θ, reduce="stack", shapes={MOMENTS: shape}, labels=True
        )  # fmt: skip
        moments = outcome.arrays[MOMENTS]  # (n, 1 + C, 2, l)
        ranges = np.stack([moments.min(axis=(0, 3)), moments.max(axis=(0, 3))], axis=-1)  # (1 + C, 2, 2)
        points = scaled(moments, ranges)
        clusters = dense(points.reshape(len(points), -1), self.hyper.scale)
        count = int(clusters.max()) + 1
        log.info("round %d: %d clusters of %d clients", round.number, count, len(clusters))
        self._extractor, self._range = θ, ranges[0]
        self._centers = np.stack([points[clusters == cluster, 0].mean(axis=0) for cluster in range(count)])
        self.places = dict(zip(outcome.clients, clusters.tolist(), strict=True))
        return {name: array for cluster in range(count) for name, array in named(cluster, θ).items()}

    @property
    def _dimensions(self) -> int:
        """l, the number of dimensions of a descriptor."""
        spec = dataset_of(self.settings)
        network = network_for(spec, self.settings, self.settings.seed)
        with torch.no_grad():
            features = body_and_classifier(network)[0].eval()(random_inputs(spec.shape, codes=spec.codes)).flatten(1)
        return dimensions(self.hyper, spec.classes, features.shape[1])

    def locate(
        self, round: Round, clients: Sequence[str], model: Arrays, *, evaluation: bool
    ) -> tuple[dict[str, int], dict[str, str]]:
        """Return the clients' clusters; those of new clients by the label-agnostic part of their descriptors."""
        if not self._extractor:
            return dict.fromkeys(clients, 0), {}
        places = {client: self.places[client] for client in clients if client in self.places}
        new = [client for client in clients if client not in places]
        if not new:
            return places, {}
        outcome = round.ask(
            "describe", new, send=self._extractor, reduce="stack", shapes={MOMENTS: (1, *self._centers.shape[1:])},
            evaluation=evaluation, out_of=0, labels=False,
        )  # fmt: skip
        if outcome.clients:
            points = scaled(outcome.arrays[MOMENTS][:, 0], self._range)
            distances = cdist(points.reshape(len(points), -1), self._centers.reshape(len(self._centers), -1))
            found = dict(zip(outcome.clients, distances.argmin(axis=1).tolist(), strict=True))
            places |= found
            self.places |= {} if evaluation else found
        return places, outcome.failures

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return what new clients are assigned by, and the clients' clusters, for checkpoints."""
        arrays, facts = super().state()
        extractor = {f"extractor/{name}": array for name, array in self._extractor.items()}
        return arrays | extractor | {"range": self._range, "centers": self._centers}, facts

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        super().restore(arrays, facts)
        self._extractor = part(arrays, "extractor/")
        self._range, self._centers = arrays["range"], arrays["centers"]


def scaled(moments: Points, ranges: Points) -> Points:
    """Return moments (…, l) scaled to 0..1 by their ranges, least and largest value, (…, 2).

    The means over all examples have a range in common, and so have their standard deviations, and those of each class.
    """
    least, largest = ranges[..., :1], ranges[..., 1:]
    result: Points = (moments - least) / np.where(largest > least, largest - least, 1.0)
    return result


def dense(points: Points, scale: float) -> NDArray[np.int64]:
    """Return the cluster 0, 1, … of each point (n, f): those of DBSCAN with two neighbours, then each point left over.

    The radius is ``scale`` times the distance at the elbow of the sorted distances to the nearest neighbour.
    """
    if len(points) == 1:
        return np.zeros(1, dtype=np.int64)
    distances = squareform(pdist(points))
    nearest = np.sort((distances + np.diag([np.inf] * len(points))).min(axis=1))[::-1]
    radius = scale * nearest[elbow(nearest.tolist()) - 1]
    found = DBSCAN(eps=max(radius, np.finfo(float).tiny), min_samples=2, metric="precomputed").fit_predict(distances)
    clusters: NDArray[np.int64] = found.astype(np.int64)
    alone = clusters < 0
    clusters[alone] = clusters.max() + 1 + np.arange(alone.sum())
    return clusters
