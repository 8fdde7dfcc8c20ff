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


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return a partitioner whose clients' shares of all rows are q ~ Dir(α, …, α).

    The partitioner raises ``DataError`` if some client has fewer than ``quantity-skew.min-examples`` in all of
    ``ATTEMPTS`` draws.
    """
    own, n = settings.own_keys(QuantitySkewKeys), settings.num_clients

    def owners(labels: NDArray[np.int64]) -> NDArray[np.int64]:
        rng = np.random.default_rng(seed)
        for _ in range(ATTEMPTS):
            sizes = cut(len(labels), rng.dirichlet(np.full(n, own.alpha)))
            if sizes.min() >= own.min_examples:
                return np.repeat(np.arange(n), sizes)  # the rows come in random order
        raise DataError(
            f"quantity-skew.alpha: with {own.alpha:g} and {n} clients some client got fewer than {own.min_examples} "
            f"examples in each of {ATTEMPTS} draws. Use fewer clients, a larger alpha or a smaller "
            "quantity-skew.min-examples."
        )

    return OwnersPartitioner(n, owners)
