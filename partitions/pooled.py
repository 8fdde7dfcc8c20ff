"""Training and test split of a dataset as one pooled split, for splits that count their rows over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.files import make_once
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import Dataset, Split
from florilegium.partitions.split_table import SplitTable

_CHUNK = 4096
"""Rows that are copied at a time, so that a dataset larger than the memory can be pooled."""


def pooled(settings: FederationSettings, dataset: Dataset, table: SplitTable | None) -> Dataset:
    """Return ``dataset`` as the federation counts its rows: pooled if training and test rows are divided together.

    A pooled dataset has one training split, the rows of the training split and then those of the test split. Its inputs
    are copied once per machine to the cache and memory-mapped from there. Columns of client names that only one split
    has are dropped. A dataset without a test split is returned unchanged.

    Args:
        settings: the settings of the federation.
        dataset: the dataset.
        table: the split that is fixed as a whole, if it is.
    """
    pools = table.pooled if table else PARTITIONERS[settings.partitioner].held_out > 0
    train, test = dataset.train, dataset.test
    if test is None or not pools:
        return dataset
    fingerprint = f"{dataset.fingerprint}-pooled"
    inputs = [train.x, test.x]
    if dataset.spec.made:  # in memory, and different for every seed
        x: NDArray[Any] = np.concatenate(inputs)
    else:
        file = settings.cache / "datasets" / f"{dataset.spec.name}-{fingerprint}.npy"
        x = np.load(make_once(file, lambda: inputs, _concatenate), mmap_mode="r")
    names = [column for column in train.clients if column in test.clients]
    clients = {column: np.concatenate([train.clients[column], test.clients[column]]) for column in names}
    weights = None if train.weights is None or test.weights is None else np.concatenate([train.weights, test.weights])
    split = Split(x, np.concatenate([train.y, test.y]), clients, weights)
    return replace(dataset, train=split, test=None, fingerprint=fingerprint)


def _concatenate(parts: Sequence[NDArray[Any]], path: Path) -> None:
    """Write the rows of ``parts``, one array after the other, to ``path`` in NumPy's ``.npy`` format."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    target = np.lib.format.open_memmap(path, mode="w+", dtype=parts[0].dtype, shape=shape)
    start = 0
    for part in parts:
        for first in range(0, len(part), _CHUNK):
            rows = part[first : first + _CHUNK]
            target[start : start + len(rows)] = rows
            start += len(rows)
    target.flush()
