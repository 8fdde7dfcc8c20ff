"""The coordinate-wise trimmed mean (Yin, Chen, Ramchandran and Bartlett 2018, Definition 2, with β = f/n)."""

from __future__ import annotations

import numpy as np

from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack, ordered


class TrimmedMean(Rule):
    """Takes the mean of every entry without the f largest and f smallest values."""

    title = "the mean of every entry without the f largest and f smallest values"
    source = "Yin et al. 2018"

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the trimmed mean."""
        kept = slice(self.attackers, len(stack) - self.attackers)
        return Combined(stack.entrywise(lambda rows: ordered(rows)[:, kept].mean(axis=1, dtype=np.float64)))
