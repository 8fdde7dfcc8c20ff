"""Norm bounding with weak noise (Sun, Kairouz, Suresh and McMahan 2019, section 4).

The weighted mean of updates that are scaled down to norm M, plus Gaussian noise. It is no differential privacy: the
noise comes from the run's seed, and no account is kept.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from florilegium.common.settings import Section, key
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack


class NormBoundKeys(Section):
    """Keys of norm bounding."""

    title = "Robust rule `norm-bound`"

    norm: float = key(0.0, "M, the norm to which longer updates are scaled; 0: the median of the cohort's norms", ge=0)
    noise: float = key(0.0, "standard deviation of the noise that is added to each entry of the mean update", ge=0)


class NormBound(Rule):
    """Averages updates whose norm is bounded, and adds noise."""

    title = "the weighted mean of updates that are scaled to at most norm M, plus noise"
    source = "Sun et al. 2019"
    keys = NormBoundKeys
    needs = (0, 1)
    weighted = True

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the mean."""
        own = cast(NormBoundKeys, self.settings)
        lengths = stack.lengths()
        bound = own.norm or float(np.median(lengths))
        factors = np.minimum(1.0, bound / np.maximum(lengths, np.finfo(float).tiny))
        found = stack.combination(stack.weights / stack.weights.sum() * factors)
        if own.noise:
            rng = around.generator("norm-bound")
            found = {name: array + rng.normal(0.0, own.noise, array.shape) for name, array in found.items()}
        return Combined(found)
