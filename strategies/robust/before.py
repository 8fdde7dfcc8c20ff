"""What mixes updates before a rule: nearest-neighbour mixing and bucketing; each gives a matrix M of shares.

Nearest-neighbour mixing (Allouah et al. 2023, Algorithm 2): each update becomes the mean of its n − f nearest ones,
itself among them. Bucketing (Karimireddy, He and Jaggi 2022, Algorithm 1): the updates, in random order, are averaged
in buckets of s; the last bucket may be smaller. At most f buckets have an attacker.
"""

from __future__ import annotations

import numpy as np

from florilegium.strategies.robust.rule import Surroundings
from florilegium.strategies.robust.stack import Matrix, Stack, smallest


def nearest_neighbours(stack: Stack, attackers: int) -> Matrix:
    """Return M, (n, n); of equally near updates the first."""
    count = len(stack)
    near = count - attackers
    mixing = np.zeros((count, count))
    for row, distances in enumerate(stack.distances):
        order = smallest(np.where(np.arange(count) == row, -1.0, distances), near)  # each is its own nearest
        mixing[row, order] = 1 / near
    return mixing


def buckets(count: int, size: int, around: Surroundings) -> Matrix:
    """Return M, (⌈n/s⌉, n), with the order drawn from the run's seed."""
    order = around.generator("bucketing").permutation(count)
    mixing = np.zeros((-(-count // size), count))
    for bucket, start in enumerate(range(0, count, size)):
        own = order[start : start + size]
        mixing[bucket, own] = 1 / len(own)
    return mixing
