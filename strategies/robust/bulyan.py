"""Bulyan (El Mhamdi, Guerraoui and Rouault 2018, section 4): Krum again and again, then a mean around the median.

θ = n − 2f updates are chosen: each time the one that Krum takes of those that are left. Every entry is the mean of the
β = θ − 2f of their values that are nearest to their median.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.strategies.robust.krum import scores
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Matrix, Stack, Vector, ordered, smallest


class Bulyan(Rule):
    """Averages the middle values of updates that Krum chooses."""

    title = "the mean of the values nearest to the median, of updates that Krum has chosen one by one"
    source = "El Mhamdi et al. 2018"
    needs = (4, 3)

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the mean around the median."""
        count, f = len(stack), self.attackers
        chosen = selected(stack.distances, f, count - 2 * f)
        excluded = np.ones(count, dtype=bool)
        excluded[chosen] = False
        around_median = stack.entrywise(lambda rows: nearest_mean(rows[chosen], count - 4 * f))
        return Combined(around_median, excluded)


def selected(distances: Matrix, attackers: int, count: int) -> list[int]:
    """Return the ``count`` rows that Krum chooses one after the other; ``distances``: squared, (n, n)."""
    left, chosen = [*range(len(distances))], list[int]()
    while len(chosen) < count:
        if len(left) == 1:
            return [*chosen, *left]
        (place,) = smallest(scores(distances[np.ix_(left, left)], attackers), 1)
        chosen.append(left.pop(int(place)))
    return chosen


def nearest_mean(rows: NDArray[Any], count: int) -> Vector:
    """Return for each column the mean of the ``count`` values that are nearest to its median, (columns,).

    In ascending order these are neighbours: again and again the end goes that is farther from the median, of equally
    far ones the upper.
    """
    values = ordered(rows).astype(np.float64, copy=False)
    half, columns = len(rows) // 2, np.arange(len(values))
    middle = values[:, half] if len(rows) % 2 else (values[:, half - 1] + values[:, half]) / 2
    first, last = np.zeros(len(values), dtype=int), np.full(len(values), len(rows) - 1)
    for _ in range(len(rows) - count):
        lower = middle - values[columns, first] > values[columns, last] - middle
        first += lower
        last -= ~lower
    return np.asarray(np.take_along_axis(values, first[:, None] + np.arange(count), axis=1).mean(axis=1))
