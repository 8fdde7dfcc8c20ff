"""Rows sorted by class, cut into shards, and several shards for each client (McMahan et al. 2017)."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner, ShardPartitioner

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.partitioners.keys import ShardKeys
from florilegium.partitions.settings import FederationSettings


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``ShardPartitioner``.

    Raises:
        ConfigurationError: if neither the number nor the size of shards is given, or an incomplete shard is to be kept
            though their number is given.
    """
    own = settings.own_keys(ShardKeys)
    if not own.per_client and not own.size:
        raise ConfigurationError("shard.size: give the size of a shard, or shard.per-client, or both (found: 0 and 0)")
    if own.per_client and own.keep_incomplete:
        raise ConfigurationError("shard.keep-incomplete: shard.per-client sets the number of shards; set it to 0")
    return ShardPartitioner(
        num_partitions=settings.num_clients,
        partition_by="label",
        num_shards_per_partition=own.per_client or None,
        shard_size=own.size or None,
        keep_incomplete_shard=own.keep_incomplete,
        seed=seed,
    )
