"""The weighted mean, which tolerates no attacker: what ``aggregation = "mean"`` computes of single updates."""

from __future__ import annotations

from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack


class Mean(Rule):
    """Averages all updates by their clients' weights."""

    title = "the weighted mean; tolerates no attacker"
    needs = (0, 1)
    source = "McMahan et al. 2017"
    weighted = True

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the mean."""
        return Combined(stack.combination(stack.weights / stack.weights.sum()))
