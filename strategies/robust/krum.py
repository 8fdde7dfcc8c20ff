"""Krum and Multi-Krum (Blanchard, El Mhamdi, Guerraoui and Stainer 2017, section 4)."""

from __future__ import annotations

from typing import cast

import numpy as np

from florilegium.common.settings import Section, key
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings, mean_of
from florilegium.strategies.robust.stack import Matrix, Stack, Vector, smallest


def scores(distances: Matrix, attackers: int) -> Vector:
    """Return each row's sum of squared distances to its n − f − 2 nearest others, at least one; (n,).

    Args:
        distances: squared distances, (n, n).
        attackers: f.
    """
    nearest = max(1, len(distances) - attackers - 2)
    others = np.sort(distances + np.diag(np.full(len(distances), np.inf)), axis=1)
    return np.asarray(others[:, : min(nearest, len(distances) - 1)].sum(axis=1))


class Krum(Rule):
    """Takes the update that is nearest to its neighbours."""

    title = "the update with the smallest sum of squared distances to its n − f − 2 nearest ones"
    source = "Blanchard et al. 2017"
    needs = (2, 3)

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the update; of equal scores the first."""
        return mean_of(stack, smallest(scores(stack.distances, self.attackers), 1))


class MultiKrumKeys(Section):
    """Keys of Multi-Krum."""

    title = "Robust rule `multi-krum`"

    selected: int = key(0, "m, number of updates with the smallest scores that are averaged; 0: n − f − 2", ge=0)


class MultiKrum(Rule):
    """Takes the mean of the m updates with the smallest scores of Krum."""

    title = "the mean of the m updates with the smallest scores of Krum"
    source = "Blanchard et al. 2017"
    keys = MultiKrumKeys
    needs = (2, 3)

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the mean; all updates' if there are fewer than m."""
        count = cast(MultiKrumKeys, self.settings).selected or len(stack) - self.attackers - 2
        return mean_of(stack, smallest(scores(stack.distances, self.attackers), count))
