"""Identically distributed clients: rows are assigned at random."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import IidPartitioner, Partitioner

from florilegium.partitions.settings import FederationSettings


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``IidPartitioner`` over ``rows``, which come in random order."""
    return IidPartitioner(num_partitions=settings.num_clients)
