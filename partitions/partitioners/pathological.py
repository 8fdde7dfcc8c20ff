"""Clients with a fixed number of classes, each class divided evenly among its clients (Li et al. 2022)."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner, PathologicalPartitioner

from florilegium.partitions.partitioners.keys import PathologicalKeys
from florilegium.partitions.settings import FederationSettings


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``PathologicalPartitioner``; rows of a class that no client got have no owner."""
    own = settings.own_keys(PathologicalKeys)
    return PathologicalPartitioner(
        num_partitions=settings.num_clients,
        partition_by="label",
        num_classes_per_partition=own.classes,
        class_assignment_mode=own.assignment,
        seed=seed,
    )
