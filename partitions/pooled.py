"""Training and test split of a dataset as one pooled split, for splits that count their rows over both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.files import make_once, write_atomically
from florilegium.common.settings import folder
from florilegium.partitions.spec import Dataset, Split

_CHUNK = 4096
"""Rows that are copied at a time, so that a dataset larger than the memory can be pooled."""


def pooled(dataset: Dataset, cache_dir: str) -> Dataset:
    """Return ``dataset`` with one training split, the rows of its training split and then those of its test split.

    The inputs are copied once per machine to ``cache_dir`` and memory-mapped from there. Columns of client names that
    only one split has are dropped. A dataset without a test split is returned unchanged.
    """
    train, test = dataset.train, dataset.test
    if test is None:
        return dataset
    fingerprint = f"{dataset.fingerprint}-pooled"
    cache = folder(cache_dir) / "datasets" / f"{dataset.spec.name}-{fingerprint}"
    if dataset.spec.made:  # in memory, and different for every seed
        x: NDArray[Any] = np.concatenate([train.x, test.x])
    else:
        file = cache / "x.npy"
        make_once(
            file, lambda: write_atomically(file, lambda path: _concatenate(path, (train.x, test.x))), cache / "lock"
        )
        x = np.load(file, mmap_mode="r")
    names = [column for column in train.clients if column in test.clients]
    clients = {column: np.concatenate([train.clients[column], test.clients[column]]) for column in names}
    split = Split(x, np.concatenate([train.y, test.y]), clients)
    return replace(dataset, train=split, test=None, fingerprint=fingerprint)


def _concatenate(path: Path, parts: Sequence[NDArray[Any]]) -> None:
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
