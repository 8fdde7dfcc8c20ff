"""A flwr-datasets partitioner of a function that names the owner of every row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

Owners = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Function of the labels of all rows, (rows,), that returns the owner of each, 0..n-1, (rows,)."""


class OwnersPartitioner(Partitioner):
    """Gives each row to the client that a function names; every row belongs to one client.

    Args:
        num_partitions: number of clients n.
        owners: the function; it is called once, when the first partition is loaded.
    """

    def __init__(self, num_partitions: int, owners: Owners) -> None:
        super().__init__()
        self._num_partitions = num_partitions
        self._owners = owners
        self._rows: list[NDArray[np.int64]] | None = None

    @property
    def num_partitions(self) -> int:
        """Number of clients n."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> HubDataset:
        """Return the rows of client ``partition_id``."""
        if self._rows is None:
            owner = self._owners(np.asarray(self.dataset["label"]))
            ends = np.cumsum(np.bincount(owner, minlength=self._num_partitions))
            self._rows = np.split(np.argsort(owner, kind="stable"), ends[:-1])
        return self.dataset.select(self._rows[partition_id])


def owners_of(labels: NDArray[np.int64], counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return owners of all rows such that clients have given numbers of rows of each class, chosen at random.

    Args:
        labels: class of each row, (rows,).
        counts: rows of each class (in ascending order of those that occur) that each client gets, (classes, n); each
            row of ``counts`` sums to the number of rows of the class.
        rng: the generator.
    """
    owner = np.empty(len(labels), np.int64)
    for c, shares in zip(np.unique(labels), counts, strict=True):
        owner[rng.permutation(np.flatnonzero(labels == c))] = np.repeat(np.arange(len(shares)), shares)
    return owner
