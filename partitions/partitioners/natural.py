"""Natural clients, which a column of the data names: writers, roles, users, occupations."""

from __future__ import annotations

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import NaturalIdPartitioner, Partitioner

from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Shares


class _Sorting(NaturalIdPartitioner):
    """flwr-datasets' partitioner, which finds the rows of all clients at once, and draws no progress bar."""

    def _create_partition_id_to_indices(self) -> None:
        names = self.dataset.data.column(self._partition_by).combine_chunks().dictionary_encode()
        number = [self._natural_id_to_partition_id[name] for name in names.dictionary.to_pylist()]
        owners = np.array(number, np.int64)[names.indices.to_numpy()]
        self._partition_id_to_indices = Shares.sized(np.argsort(owners, kind="stable"), np.bincount(owners))


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``NaturalIdPartitioner`` over the column ``client`` of ``rows``."""
    return _Sorting(partition_by="client")
