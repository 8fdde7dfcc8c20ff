"""Medians of columns from sums: brackets that hold them are narrowed by counts of rows below ever closer edges.

A mean is within one deviation of its median, so that the first bracket is known. Each exchange divides it into
:data:`PARTS`. A bracket is kept when a narrower one would hold fewer rows than may be shown; its middle is the median.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Below = Callable[[Array], Array]
"""Returns how many rows of each column are at or below its edges (E, d), in the same shape."""

PARTS = 32
_EXCHANGES = 6
"""With 32 parts each, brackets are 2⁻²⁹ deviations wide in the end: less than numbers in single precision differ."""
_MARGIN = 1e-6


def medians(below: Below, known: Array, mean: Array, deviation: Array, least: int) -> tuple[Array, Array]:
    """Return medians (d,), NaN where no row has a value, and half the widths of the brackets that hold them, (d,).

    Args:
        below: asks all clients for counts.
        known: number of rows that have a value, (d,).
        mean, deviation: of these, (d,).
        least: the smallest number of rows that a bracket may hold.
    """
    ends = np.stack([
        _ranked(below, rank, mean, deviation, least) for rank in (np.ceil(known / 2), np.floor(known / 2) + 1)
    ])  # fmt: skip
    return np.where(known > 0, ends.mean(axis=(0, 1)), np.nan), np.abs(ends[:, 1] - ends[:, 0]).max(axis=0) / 2


def _ranked(below: Below, rank: Array, mean: Array, deviation: Array, least: int) -> Array:
    """Return the brackets (2, d) of the numbers of rank ``rank`` (d,), counted from 1."""
    # Of an even number of rows the two in the middle may be on both sides of the bound, so that it is widened.
    reach = np.maximum(deviation, np.abs(mean) * 1e-12) * (1 + _MARGIN) + 1e-300
    low, high = mean - 2 * reach, mean + 2 * reach
    steps = np.arange(PARTS + 1)[:, None] / PARTS
    going = np.ones(len(mean), bool)
    for _ in range(_EXCHANGES):
        edges = low + steps * (high - low)
        counts = below(edges)
        place = np.clip((counts < rank).sum(axis=0), 1, PARTS)  # the first edge with enough rows below it
        columns = np.arange(len(mean))
        inside = counts[place, columns] - counts[place - 1, columns]
        going &= inside >= max(least, 1)
        low, high = np.where(going, edges[place - 1, columns], low), np.where(going, edges[place, columns], high)
        if not going.any():
            break
    return np.stack([low, high])
