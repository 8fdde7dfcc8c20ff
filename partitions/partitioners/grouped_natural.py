"""Natural clients joined to groups: organisations of several users."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import GroupedNaturalIdPartitioner, Partitioner

from florilegium.partitions.partitioners.keys import GroupedNaturalKeys
from florilegium.partitions.settings import FederationSettings


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``GroupedNaturalIdPartitioner`` over the column ``client`` of ``rows``.

    Unsorted, it groups natural clients in the order in which they occur in ``rows``, which is random.
    """
    own = settings.own_keys(GroupedNaturalKeys)
    # flwr-datasets spells this mode differently.
    mode = "drop-reminder" if own.mode == "drop-remainder" else own.mode
    return GroupedNaturalIdPartitioner("client", own.group_size, mode, own.sort)
