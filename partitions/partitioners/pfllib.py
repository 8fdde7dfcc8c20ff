"""The splits of PFLlib's generators (Zhang et al. 2025), over its pooled training and test rows.

``pfllib-pathological`` ("pat"): a given number of classes for each client, in random amounts. ``pfllib-practical``
("dir"): each class divided in Dirichlet proportions. PFLlib holds out a quarter of each client's rows for testing, as
:attr:`florilegium.partitions.partitioning.Partitioning.held_out` says. Its own rows in a class are consecutive ones of
the dataset; here they are drawn at random.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.partitioners.dirichlet_shares import dirichlet_counts
from florilegium.partitions.partitioners.keys import PfllibPathologicalKeys, PfllibPracticalKeys
from florilegium.partitions.partitioners.owners import OwnersPartitioner, owners_of
from florilegium.partitions.settings import FederationSettings

Rows = NDArray[np.int64]

LEAST = 40
"""Rows that PFLlib wants a client to have: a batch of 10 test rows, where a quarter of the rows are test rows."""


def make_pathological(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner of PFLlib's pathological split (:func:`classes_of`, :func:`amounts`)."""
    own = settings.own_keys(PfllibPathologicalKeys)

    def owners(labels: Rows) -> Rows:
        rng = np.random.default_rng(seed)
        classes, sizes = np.unique(labels, return_counts=True)
        least = min(LEAST, len(labels) / settings.num_clients / 2) / len(classes)
        counts = np.zeros((len(classes), settings.num_clients), np.int64)
        for c, clients in enumerate(classes_of(settings.num_clients, len(classes), own.classes)):
            counts[c, clients] = amounts(int(classes[c]), int(sizes[c]), len(clients), least, own.balanced, rng)
        return owners_of(labels, counts, rng)

    return OwnersPartitioner(settings.num_clients, owners)


def classes_of(n: int, classes: int, each: int) -> list[Rows]:
    """Return the clients that hold each class.

    The classes go in order to the first ⌈n·each/classes⌉ clients that have fewer than ``each`` classes so far. So
    groups of clients hold the same classes.

    Args:
        n: number of clients.
        classes: number of classes.
        each: classes of each client.

    Raises:
        ConfigurationError: if clients cannot have so many classes, or a class is left without a client.
    """
    if each > classes:
        raise ConfigurationError(
            f"pfllib-pathological.classes: {each} classes of each client, but the data have {classes}"
        )
    left = np.full(n, each)
    result = []
    for c in range(classes):
        clients = np.flatnonzero(left)[: -(-n * each // classes)]
        if not len(clients):
            raise ConfigurationError(
                f"pfllib-pathological.classes: {n} clients with {each} classes each leave the last {classes - c} of "
                f"{classes} classes without a client; let num-clients × classes be a multiple of {classes}"
            )
        left[clients] -= 1
        result.append(clients)
    return result


def amounts(c: int, size: int, clients: int, least: float, balanced: bool, rng: np.random.Generator) -> Rows:
    """Draw how many of the ``size`` rows of class ``c`` each of its ``clients`` gets, (clients,).

    With m = size / clients, every client but the last gets a uniform whole number from max(m / 10, ``least``) to m
    (exclusive), or m if ``balanced``; the last one gets the rest.

    Raises:
        DataError: if the class has too few rows.
    """
    mean = size / clients
    low = max(1, int(max(mean / 10, least)))
    if mean < 1 or (clients > 1 and not balanced and low >= int(mean)):
        raise DataError(
            f"num-clients: class {c} has {size} rows for {clients} clients, too few to draw amounts of; use fewer "
            "clients or fewer classes for each"
        )
    first = np.full(clients - 1, int(mean)) if balanced else rng.integers(low, int(mean), clients - 1)
    return np.append(first, size - first.sum())


def make_practical(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner of PFLlib's practical split (:func:`dirichlet_counts` over all clients)."""
    own, n = settings.own_keys(PfllibPracticalKeys), settings.num_clients

    def owners(labels: Rows) -> Rows:
        rng = np.random.default_rng(seed)
        sizes = np.unique(labels, return_counts=True)[1]
        least = int(min(own.min_examples, len(labels) / n / 2))
        draw = partial(dirichlet_counts, sizes, [np.arange(n)] * len(sizes), n)
        return owners_of(labels, draw(own.alpha, least, rng, "pfllib-practical"), rng)

    return OwnersPartitioner(n, owners)
