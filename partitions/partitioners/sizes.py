"""Clients that differ in the number of their examples: given sizes, or sizes that grow with the client's number.

Rows come in random order, so a client's examples are a random sample of all.
"""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import (
    ExponentialPartitioner,
    LinearPartitioner,
    Partitioner,
    SizePartitioner,
    SquarePartitioner,
)

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import parse_whole
from florilegium.partitions.partitioners.keys import SizeKeys
from florilegium.partitions.settings import FederationSettings


def client_sizes(settings: FederationSettings, text: str, key: str, rows: int) -> list[int]:
    """Return the number of training examples of each client.

    Args:
        settings: settings of the federation.
        text: value of ``key``: a number per client, one for all, or "" for equal shares of all rows.
        key: name of the key, for error messages.
        rows: number of rows to divide.

    Raises:
        ConfigurationError: if there are more or fewer numbers than clients, or ``samples-per-client`` is given too.
        DataError: if the sizes add up to more than ``rows``.
    """
    n = settings.num_clients
    if not text:
        return [rows // n + (client < rows % n) for client in range(n)]
    if settings.samples_per_client:
        raise ConfigurationError(
            f"{key}: give either the sizes or samples-per-client, not both; set one to its default"
        )
    sizes = parse_whole(text)
    if len(sizes) == 1:
        sizes *= n
    if len(sizes) != n:
        raise ConfigurationError(f"{key}: {len(sizes)} sizes for {n} clients; give one, or one per client")
    if sum(sizes) > rows:
        raise DataError(f"{key}: the sizes add up to {sum(sizes)}, but there are {rows} training examples")
    return sizes


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``SizePartitioner`` for the sizes ``size.sizes``; remaining rows have no owner."""
    return SizePartitioner(client_sizes(settings, settings.own_keys(SizeKeys).sizes, "size.sizes", len(rows)))


def make_linear(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``LinearPartitioner``: client i of 1..n gets a share proportional to i."""
    return LinearPartitioner(settings.num_clients)


def make_square(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``SquarePartitioner``: client i of 1..n gets a share proportional to i²."""
    return SquarePartitioner(settings.num_clients)


def make_exponential(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``ExponentialPartitioner``: client i of 1..n gets a share proportional to eⁱ."""
    return ExponentialPartitioner(settings.num_clients)
