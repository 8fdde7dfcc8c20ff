"""Natural clients, which a column of the data names: writers, roles, users, occupations."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import NaturalIdPartitioner, Partitioner

from florilegium.partitions.settings import FederationSettings


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``NaturalIdPartitioner`` over the column ``client`` of ``rows``."""
    return NaturalIdPartitioner(partition_by="client")
