"""Clients that are random samples of unequal size, with sizes drawn from a Dirichlet distribution (Li et al. 2022)."""

from __future__ import annotations

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.partitioners.dirichlet_shares import ATTEMPTS, cut
from florilegium.partitions.partitioners.keys import QuantitySkewKeys
from florilegium.partitions.partitioners.owners import OwnersPartitioner
from florilegium.partitions.settings import FederationSettings

Rows = NDArray[np.int64]


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return a partitioner that gives clients the sizes of :func:`draw_sizes`."""
    own, n = settings.own_keys(QuantitySkewKeys), settings.num_clients

    def owners(labels: Rows) -> Rows:
        sizes = draw_sizes(len(labels), n, own.alpha, own.min_examples, np.random.default_rng(seed))
        return np.repeat(np.arange(n), sizes)  # the rows come in random order

    return OwnersPartitioner(n, owners)


def draw_sizes(rows: int, n: int, alpha: float, least: int, rng: np.random.Generator) -> Rows:
    """Draw the sizes of ``n`` clients, whose shares of all ``rows`` are q ~ Dir(α, …, α) with α = ``alpha``; (n,).

    Raises:
        DataError: if some client has fewer than ``least`` rows in all of ``ATTEMPTS`` draws.
    """
    for _ in range(ATTEMPTS):
        sizes = cut(rows, rng.dirichlet(np.full(n, alpha)))
        if sizes.min() >= least:
            return sizes
    raise DataError(
        f"quantity-skew.alpha: with {alpha:g} and {n} clients some client got fewer than {least} examples in each of "
        f"{ATTEMPTS} draws. Use fewer clients, a larger alpha or a smaller quantity-skew.min-examples."
    )
