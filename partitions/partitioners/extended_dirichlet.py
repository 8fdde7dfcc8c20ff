"""Extended Dirichlet: each client draws C classes, each class is divided among its clients (Li & Lyu 2023).

With all classes for every client it is the label skew p_k ~ Dir(β) of NIID-Bench (Li et al. 2022).
"""

from __future__ import annotations

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.partitioners.dirichlet_shares import ATTEMPTS, dirichlet_counts
from florilegium.partitions.partitioners.keys import ExtendedDirichletKeys
from florilegium.partitions.partitioners.owners import OwnersPartitioner, owners_of
from florilegium.partitions.settings import FederationSettings

Rows = NDArray[np.int64]


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner of the keys ``extended-dirichlet.*``."""
    own, n = settings.own_keys(ExtendedDirichletKeys), settings.num_clients

    def owners(labels: Rows) -> Rows:
        rng = np.random.default_rng(seed)
        sizes = np.unique(labels, return_counts=True)[1]
        holders = draw_holders(n, len(sizes), own.classes or len(sizes), rng)
        counts = dirichlet_counts(sizes, holders, n, own.alpha, own.min_examples, rng, "extended-dirichlet")
        return owners_of(labels, counts, rng)

    return OwnersPartitioner(n, owners)


def draw_holders(n: int, classes: int, each: int, rng: np.random.Generator) -> list[Rows]:
    """Draw ``each`` classes for each of ``n`` clients and return the clients that hold each class.

    As in the authors' code, the draw is repeated until every class has at least max(1, ⌊⌊n·each/classes⌋/5⌋) clients.

    Raises:
        ConfigurationError: if clients cannot have so many classes, or there are too few clients for all classes.
        DataError: if some class has too few clients in all of ``ATTEMPTS`` draws.
    """
    if each > classes:
        raise ConfigurationError(
            f"extended-dirichlet.classes: {each} classes of each client, but the data have {classes}"
        )
    if n * each < classes:
        raise ConfigurationError(
            f"num-clients: {n} clients with {each} classes each cannot hold all {classes} classes; use more clients or "
            "a larger extended-dirichlet.classes"
        )
    least = max(1, n * each // classes // 5)
    for _ in range(ATTEMPTS):
        drawn = rng.random((n, classes)).argsort(axis=1)[:, :each]
        holders = [np.flatnonzero((drawn == c).any(axis=1)) for c in range(classes)]
        if min(map(len, holders)) >= least:
            return holders
    raise DataError(
        f"extended-dirichlet.classes: with {n} clients and {each} classes each some class had fewer than {least} "
        f"clients in each of {ATTEMPTS} draws; use more clients or more classes"
    )
