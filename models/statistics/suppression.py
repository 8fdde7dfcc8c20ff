"""Suppression of small counts: those below a minimum are hidden, and so many others that subtraction finds none.

A table whose total is known gives a single hidden cell away. So further cells are hidden, the next ones in their order,
until at least two are, they hold at least the minimum together, and their sum leaves more than one possibility
(complementary suppression; Willenborg, de Waal 2001, chapter 6). The rule itself is public and must not give them away
either: were the smallest cells hidden next, it would.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HIDDEN = -1.0
"""What stands for a hidden count in messages."""


def hidden(counts: NDArray[np.float64], least: float) -> NDArray[np.bool_]:
    """Return which cells of a table (C,) with a known total must not be shown.

    All are hidden where one is too small and they hold less than ``least`` on average.

    Args:
        counts: the counts, whole numbers of at least 0.
        least: the smallest count that may be shown, besides 0; up to 1 nothing is hidden.
    """
    small = (counts > 0) & (counts < least)
    if not small.any():
        return small
    if counts.sum() <= len(counts) * (least - 1):  # tables of 1 alone, say, must look like others
        return np.ones(len(counts), bool)
    for place in (int(np.argmax(small)) + np.arange(len(counts))) % len(counts):
        several, held = small.sum(), counts[small].sum()
        # Small counts that are all 1, or all one below the minimum, follow from their sum: another cell must blur it.
        alike = counts[small].max() < least and held in (several, several * (least - 1))
        if several >= 2 and held >= least and not alike:
            return small
        small[place] = True
    return small


def hidden_of_column(counts: NDArray[np.float64], least: float) -> NDArray[np.bool_]:
    """Return which cells of a column (C,), with missing values last, must not be shown.

    Means and the like are told with the number of known values, and so missing ones follow. Then both are public, and
    cells of known values are a table of their own. Where :func:`split_hidden` forbids that, all cells are one table.

    Args:
        counts, least: as for :func:`hidden`.
    """
    if split_hidden(counts, least):
        return hidden(counts, least)
    return np.append(hidden(counts[:-1], least), False)


def split_hidden(counts: NDArray[np.float64], least: float) -> bool:
    """Return whether the number of known values, all but the last (C,), or that of missing ones must not be told."""
    return bool(hidden(np.array([counts[:-1].sum(), counts[-1]]), least).any())


def shown(counts: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """Return a column's counts, missing values last, with ``HIDDEN`` in place of those that must not be shown."""
    return np.where(hidden_of_column(counts, least), HIDDEN, counts)
