"""Canaries: training examples with wrong classes, about half of which take part in training, for a privacy audit.

A coin toss decides whether each canary takes part. The better an audit can tell from the results of a run which
canaries did, the less private the run is (Carlini et al. 2019; Steinke, Nasr, Jagielski 2023).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Canaries, Federation, Shares
from florilegium.partitions.spec import Dataset
from florilegium.tasks.task import CLASSES


def plant(federation: Federation, dataset: Dataset, settings: FederationSettings) -> Federation:
    """Turn ``canaries`` training examples, or clients, into canaries and return the new federation.

    A canary example that takes part gets a wrong class, drawn at random; one that does not is removed from its client.
    In a canary client, the classes of all examples are shifted by the same number; a canary client that does not take
    part becomes an unseen client.

    Raises:
        ConfigurationError: if there are too few examples or clients, or the data have no classes.
    """
    if CLASSES not in dataset.spec.learned.provides:
        raise ConfigurationError(f"canaries: '{dataset.spec.name}' has no classes that could be wrong")
    rng = numpy_generator(settings.seed, "federation", "canaries")
    classes, count = dataset.spec.classes, settings.canaries
    training = np.flatnonzero(~federation.unseen & federation.labeled)
    if settings.canary_unit == "client":
        if count >= len(training):
            raise ConfigurationError(f"canaries: {count} of {len(training)} clients that train; leave some others")
        chosen = rng.permutation(training)[:count]
        present, turns = rng.random(count) < 0.5, rng.integers(1, classes, count)
        sizes = federation.train.sizes[chosen]
        rows = np.concatenate([federation.train[client] for client in chosen])
        wrong = (dataset.train.y[rows] + np.repeat(turns, sizes)) % classes
        unseen = federation.unseen.copy()
        unseen[chosen[~present]] = True
        canaries = Canaries(np.repeat(chosen, sizes), rows, wrong, np.repeat(present, sizes))
        return replace(federation, unseen=unseen, canaries=canaries)
    parts = [federation.train[client] for client in range(len(federation))]
    owners = np.repeat(training, federation.train.sizes[training])
    available = np.concatenate([parts[client] for client in training])
    if count > len(available) // 2:
        raise ConfigurationError(f"canaries: {count} of {len(available)} training examples; at most half of them")
    picked = rng.permutation(len(available))[:count]
    present, turns = rng.random(count) < 0.5, rng.integers(1, classes, count)
    clients, rows = owners[picked], available[picked]
    for client in np.unique(clients[~present]):
        parts[client] = parts[client][~np.isin(parts[client], rows[~present])]
        if not len(parts[client]):
            raise ConfigurationError(f"canaries: client {client} would have no training example; use fewer")
    canaries = Canaries(clients, rows, (dataset.train.y[rows] + turns) % classes, present)
    return replace(federation, train=Shares.of(parts), canaries=canaries)
