"""Walk through arrays a block at a time, so that what is computed from large ones needs no memory of their size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16
"""Number of array entries that are handled at a time, so that intermediate results stay in the processor's cache."""


def blocks(*arrays: NDArray[Any]) -> Iterator[Sequence[NDArray[Any]]]:
    """Yield the same entries of arrays of one size, (n,) from each, n ≤ :data:`BLOCK`, in the order of their axes.

    What is written to a block is written to its array if that is contiguous in this order.
    """
    flat = [array.reshape(-1) for array in arrays]
    if len(flat[0]) <= BLOCK:  # of many small arrays, slices would take as long as what is computed
        yield flat
        return
    for start in range(0, len(flat[0]), BLOCK):
        yield [one[start : start + BLOCK] for one in flat]


def entries(arrays: Iterable[NDArray[Any]], dtype: Any = np.float64) -> Iterator[NDArray[Any]]:
    """Yield copies of the entries of arrays, one array after the other, (n,) at a time; but for the last n = BLOCK."""
    parts, room = list[NDArray[Any]](), BLOCK
    for array in arrays:
        rest = array.reshape(-1)
        while len(rest) >= room:
            yield np.concatenate([*parts, rest[:room]], dtype=dtype)
            parts, rest, room = [], rest[room:], BLOCK
        if len(rest):
            parts.append(rest)
            room -= len(rest)
    if parts:
        yield np.concatenate(parts, dtype=dtype)


def fill(array: NDArray[Any], pieces: Iterable[NDArray[Any]]) -> None:
    """Write pieces to an array, (n,), one after the other, which have n entries together."""
    start = 0
    for piece in pieces:
        array[start : start + len(piece)] = piece
        start += len(piece)


def squares(array: NDArray[Any]) -> float:
    """Return the sum of the squares of an array's entries in double precision, rounded as NumPy's sum of all rounds it.

    NumPy adds halves, each of which it adds likewise; blocks are here added in this order.
    """
    return _squares(array.ravel("K"))


def _squares(flat: NDArray[Any]) -> float:
    if len(flat) <= BLOCK:
        return float(np.square(flat, dtype=np.float64).sum())
    half = len(flat) // 16 * 8
    return _squares(flat[:half]) + _squares(flat[half:])
