"""The coordinate-wise median (Yin, Chen, Ramchandran and Bartlett 2018, Definition 1)."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack, Vector, ordered


class Median(Rule):
    """Takes the median of every entry; of an even number of values the mean of the middle two."""

    title = "the median of every entry"
    source = "Yin et al. 2018"

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the median."""
        return Combined(stack.entrywise(median))


def median(rows: NDArray[Any]) -> Vector:
    """Return the median of each column, (columns,), in float64."""
    values, half = ordered(rows), len(rows) // 2
    middle: Vector = values[:, half].astype(float)
    return middle if len(rows) % 2 else (values[:, half - 1] + middle) / 2
