"""The columns of a table as trees split them: numbers by thresholds, categories one against the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.models.trees import MOST

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """What trees split: a feature that is a number, or the 0/1 features of one column's categories.

    Attributes:
        name: the column's name.
        places: the places of its features in an input, in ascending order.
        categories: whether they indicate categories.
        missing: place of the feature that says whether the value was missing; −1: none is.
    """

    name: str
    places: tuple[int, ...]
    categories: bool
    missing: int

    def cells(self, cuts: NDArray[np.float32]) -> int:
        """Return the number of cells: bins, or categories and none of them; the last is for missing values."""
        return (len(self.places) + 1 if self.categories else len(cuts) + 1) + 1

    def codes(self, x: NDArray[np.float32], cuts: NDArray[np.float32]) -> NDArray[np.uint16]:
        """Return the cell of each row of inputs x (n, d), (n,).

        A number is in the bin that is counted by the cuts that it is not below.
        """
        if self.categories:
            own = x[:, self.places[0] : self.places[-1] + 1] > 0.5
            found = np.where(own.any(axis=1), own.argmax(axis=1), len(self.places))
        else:
            found = np.searchsorted(cuts, x[:, self.places[0]], side="right")
        return np.where(self.lacks(x), self.cells(cuts) - 1, found).astype(np.uint16)

    def lacks(self, x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return in which rows of inputs x (n, d) the value was missing, (n,)."""
        return x[:, self.missing] > 0.5 if self.missing >= 0 else np.zeros(len(x), bool)


FINE, REACH = 1024, 10.0
"""Number of edges from whose counts cuts are chosen, and asinh of how far they reach, in units of the scale."""


def edges(center: Array, scale: Array) -> NDArray[np.float32]:
    """Return edges around each center, (d, FINE): dense within the scale, then ever wider, up to 10⁴ scales away.

    Args:
        center, scale: (d,).
    """
    steps = np.sinh(np.linspace(-REACH, REACH, FINE))
    return (center[:, None] + scale[:, None] * steps).astype(np.float32)


def quantiles(edges: NDArray[np.float32], counts: Array, bins: int) -> NDArray[np.float32]:
    """Return the edges, at most ``bins`` − 1, that divide what was counted into bins of nearly equal counts.

    Args:
        edges: ascending, (E,).
        counts: how many values are between them, and beyond the outermost, (E + 1,).
        bins: number of bins.
    """
    below = np.cumsum(counts)[:-1]  # of each edge
    wanted = counts.sum() * np.arange(1, bins) / bins
    places = np.unique(np.searchsorted(below, wanted * (1 - 1e-12)).clip(max=len(edges) - 1))
    kept = places[(below[places] > 0.5) & (below[places] < counts.sum() - 0.5)]
    return edges[kept]


def padded(cuts: Sequence[NDArray[np.float32]], bins: int) -> NDArray[np.float32]:
    """Return cuts as one array (columns, bins − 1), filled up with the largest number."""
    found = np.full((len(cuts), bins - 1), MOST, np.float32)
    for row, own in zip(found, cuts, strict=True):
        row[: len(own)] = own
    return found


def cuts_of(sent: NDArray[np.float32], columns: Sequence[Column]) -> list[NDArray[np.float32]]:
    """Return the cuts of each column, as :func:`padded` has put them together.

    Raises:
        ValueError: if they are not as many, or do not ascend, or columns of categories have some.
    """
    if sent.dtype != np.float32 or sent.ndim != 2 or len(sent) != len(columns):
        raise ValueError(f"cuts are {sent.dtype} of shape {sent.shape}, for {len(columns)} columns")
    numbers = (sent < MOST).sum(axis=1)
    for column, number, ascends in zip(columns, numbers, _ascend(sent), strict=True):
        if not ascends or (column.categories and number):
            raise ValueError(f"the cuts of column '{column.name}' do not ascend, or its categories have some")
    return [row[:number] for row, number in zip(sent, numbers, strict=True)]


def _ascend(sent: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows ascend, up to the largest number, which fills them up."""
    before, after = sent[:, :-1], sent[:, 1:]
    return ((before < after) | (after == MOST)).all(axis=1) & (sent <= MOST).all(axis=1)
