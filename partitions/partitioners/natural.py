"""Natural clients, which a column of the data names: writers, roles, users, occupations."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import NaturalIdPartitioner, Partitioner

from florilegium.partitions.settings import FederationSettings


class _Quiet(NaturalIdPartitioner):
    """flwr-datasets' partitioner without its progress bar, which would stand among a run's own output."""

    def _create_partition_id_to_indices(self) -> None:
        with redirect_stderr(io.StringIO()):
            super()._create_partition_id_to_indices()


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``NaturalIdPartitioner`` over the column ``client`` of ``rows``."""
    return _Quiet(partition_by="client")
