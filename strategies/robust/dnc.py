"""Divide-and-conquer (Shejwalkar and Houmansadr 2021, Algorithm 2): drop what stands out along the main direction.

In each of several passes, b entries are drawn; the updates' entries are centred, and their scores are the squared
projections onto the top right singular vector. The c·f rows with the largest scores are outliers. The mean is that of
the rows that are outliers in no pass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from florilegium.common.settings import Section, key
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings, mean_of
from florilegium.strategies.robust.stack import Matrix, Stack, Vector, smallest


class DnCKeys(Section):
    """Keys of divide-and-conquer."""

    title = "Robust rule `dnc`"

    passes: int = key(1, "number of passes", ge=1)
    entries: int = key(10000, "b, number of entries that are drawn in a pass", ge=1)
    filtered: float = key(1.0, "c: c·f rows, rounded up, are outliers of a pass", gt=0)


class DnC(Rule):
    """Averages the updates that do not stand out along the direction in which they differ most."""

    title = "the mean of updates without the outliers along the direction in which they differ most"
    source = "Shejwalkar and Houmansadr 2021"
    keys = DnCKeys

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the mean; if every row is an outlier of some pass, of those that are so in the fewest."""
        own, count = cast(DnCKeys, self.settings), len(stack)
        kept, rng = np.zeros(count, dtype=int), around.generator("dnc")
        outliers = min(int(np.ceil(own.filtered * self.attackers)), count - 1)
        for _ in range(own.passes):
            kept[smallest(scores(_drawn(stack, own.entries, rng)), count - outliers)] += 1
        return mean_of(stack, np.flatnonzero(kept == kept.max()))


def scores(drawn: Stack) -> Vector:
    """Return the squared projections of the centred rows onto their top right singular vector, (rows,)."""
    values, vectors = np.linalg.eigh(centred(drawn.products(None)))  # (row·v)² = λ₁·u₁²
    return np.asarray(max(values[-1], 0.0) * np.square(vectors[:, -1]))


def centred(products: Matrix) -> Matrix:
    """Return the inner products of rows minus their mean, (n, n), given those of the rows minus any other vector."""
    mean = products.mean(axis=0)
    return np.asarray(products - mean - mean[:, None] + mean.mean())


def _drawn(stack: Stack, count: int, rng: np.random.Generator) -> Stack:
    """Return the rows with ``count`` columns, or all if there are fewer, drawn without replacement."""
    sizes = [array[0].size for array in stack.arrays.values()]
    places = np.sort(rng.choice(sum(sizes), min(count, sum(sizes)), replace=False))
    ends = np.cumsum(sizes)
    parts = {
        name: array.reshape(len(array), -1)[:, places[(places >= end - size) & (places < end)] - (end - size)]
        for (name, array), size, end in zip(stack.arrays.items(), sizes, ends, strict=True)
    }
    return replace(stack, arrays=parts)
