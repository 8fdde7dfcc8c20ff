"""Hashes by which a later process notices that a dataset or its division among clients has changed.

They depend on the data themselves, not on the names or times of files, so that data may be moved or copied.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.partitions.shares import Federation
from florilegium.partitions.spec import Dataset

_SAMPLE = 1024
"""About how many inputs of a split are read, evenly spaced; all labels are."""


def fingerprint_of_dataset(dataset: Dataset) -> str:
    """Return a hash (twelve hex digits) of a dataset: shapes, all labels, and a sample of the inputs."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.test, dataset.validation):
        if split is not None:
            step = max(1, len(split.x) // _SAMPLE)
            digest.update(repr(split.x.shape).encode())
            # A single column of numbers counts as a vector, which it was in runs of earlier versions.
            y = split.y[:, 0] if split.y.shape[1:] == (1,) else split.y
            for array in (split.x[::step], y):
                _add(digest, array)
    return digest.hexdigest()[:12]


def fingerprint_of_federation(federation: Federation) -> str:
    """Return a hash (twelve hex digits) of a federation: which client holds which rows, and all it says of clients."""
    digest = hashlib.sha256()
    _add(digest, federation)
    return digest.hexdigest()[:12]


def _add(digest: Any, value: object) -> None:
    """Add an array, or all fields of a dataclass that are not None, to a hash."""
    if is_dataclass(value):
        for field in fields(value):
            if (part := getattr(value, field.name)) is not None:
                digest.update(field.name.encode())
                _add(digest, part)
        return
    array: NDArray[np.generic] = np.ascontiguousarray(np.asarray(value))
    digest.update(repr((array.dtype.str, array.shape)).encode() + array.tobytes())
