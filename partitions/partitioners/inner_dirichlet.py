"""Clients of given sizes whose class proportions are drawn from a Dirichlet distribution (Acar et al. 2021)."""

from __future__ import annotations

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import InnerDirichletPartitioner, Partitioner

from florilegium.partitions.partitioners.keys import InnerDirichletKeys
from florilegium.partitions.partitioners.sizes import client_sizes
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows
from florilegium.partitions.spec import Dataset


def columns(settings: FederationSettings, dataset: Dataset, rows: Rows) -> dict[str, Rows]:
    """Return the additional column ``class``: the classes that occur, numbered 0, 1, … without gaps.

    flwr-datasets' partitioner takes the number of classes that occur for the largest class plus 1.
    """
    strata = dataset.spec.learned.strata(dataset.train.y[rows])
    return {"class": np.unique(strata, return_inverse=True)[1].astype(np.int64)}


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``InnerDirichletPartitioner``."""
    own = settings.own_keys(InnerDirichletKeys)
    sizes = client_sizes(settings, own.sizes, "inner-dirichlet.sizes", len(rows))
    return InnerDirichletPartitioner(partition_sizes=sizes, partition_by="class", alpha=own.alpha, seed=seed)
