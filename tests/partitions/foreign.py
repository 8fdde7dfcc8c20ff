"""Partitioners as another package would provide them, good ones and wrong ones."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import IidPartitioner, Partitioner

from florilegium.common.settings import Section, key
from florilegium.partitions.partitioning import Partitioning


class Listed(Partitioner):
    """Gives partition i the positions ``parts[i]``."""

    parts: tuple[tuple[int, ...], ...] = ()

    @property
    def num_partitions(self) -> int:
        return len(self.parts)

    def load_partition(self, partition_id: int) -> HubDataset:
        return self.dataset.select(self.parts[partition_id])


class Twice(Listed):
    """Gives a client a row twice."""

    parts = ((0, 0), (1,))


class Common(Listed):
    """Gives two clients the same row."""

    parts = ((0, 1), (1,))


class Few(Listed):
    """Makes too few clients."""

    parts = ((0, 1),)


class Empty(Listed):
    """Leaves a client without rows."""

    parts = ((0, 1), ())


class Bare(Listed):
    """Gives partitions that do not say which rows they have."""

    parts = ((0, 1), (2,))

    def load_partition(self, partition_id: int) -> HubDataset:
        return super().load_partition(partition_id).remove_columns("row")


def raising(settings: object, rows: HubDataset, seed: int) -> Partitioner:
    """Fails with one of Python's own errors."""
    raise KeyError("age")


def odd(settings: object, rows: HubDataset, seed: int) -> Partitioner:
    """Refuses its arguments."""
    raise ValueError("the seed must be even")


def listing(settings: object, rows: HubDataset, seed: int) -> list[int]:
    """Returns no partitioner."""
    return [0, 1]


SPLIT_OF_LISTS = Partitioning("no split", split=lambda settings: [[0], [1]])  # type: ignore[arg-type,return-value]


class Demanding(Listed):
    """Requires an argument that nobody gives."""

    def __init__(self, temperature: float) -> None:
        super().__init__()


class EveryOther(Partitioner):
    """Client i of n gets the rows i, i + n, …"""

    def __init__(self, num_partitions: int, seed: int = 0) -> None:
        super().__init__()
        self._n, self.seed = num_partitions, seed

    @property
    def num_partitions(self) -> int:
        return self._n

    def load_partition(self, partition_id: int) -> HubDataset:
        return self.dataset.select(range(partition_id, len(self.dataset), self._n))


class HeadKeys(Section):
    """Keys of ``HEAD``."""

    share: float = key(0.5, "share of the rows that is used", gt=0, le=1)


def make_head(settings, rows, seed):
    """Clients share the first rows."""
    used = int(settings.own_keys(HeadKeys).share * len(rows))
    listed = Listed()
    n = settings.num_clients
    listed.parts = tuple(tuple(range(client, used, n)) for client in range(n))
    return listed


HEAD = Partitioning("the first rows", make_head, HeadKeys, rows="some")
GREEDY = Partitioning("claims to use all rows", make_head, HeadKeys, rows="all")
CLASHING = Partitioning("its table is the suite's own", make_head, HeadKeys, table="shard")
NOTHING = Partitioning("neither makes nor splits")
IID = IidPartitioner
NUMBER = 5
