"""The geometric median by the smoothed Weiszfeld algorithm: RFA (Pillutla, Kakade and Harchaoui 2022, Algorithm 2).

v ← Σ βᵢ·wᵢ / Σ βᵢ with βᵢ = αᵢ / max(ν, ‖v − wᵢ‖), from the weighted mean on; αᵢ is a client's share of all weights.
v is always a combination of the updates, so that all steps follow from their inner products.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from florilegium.common.settings import Section, key
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack


class GeometricMedianKeys(Section):
    """Keys of the geometric median."""

    title = "Robust rule `geometric-median`"

    iterations: int = key(8, "R, number of Weiszfeld steps", ge=1)
    smoothing: float = key(1e-6, "ν, the smallest distance that counts", gt=0)


class GeometricMedian(Rule):
    """Minimises the weighted sum of distances to the updates."""

    title = "the point with the least weighted sum of distances to the updates"
    source = "Pillutla et al. 2022"
    keys = GeometricMedianKeys
    weighted = True

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return v after all steps."""
        own = cast(GeometricMedianKeys, self.settings)
        α = stack.weights / stack.weights.sum()
        share, products = α, stack.inner
        for _ in range(own.iterations):
            inner = products @ share  # of v and each update, both minus a common point
            lengths = np.sqrt(np.maximum(np.diag(products) - 2 * inner + share @ inner, 0.0))
            β = α / np.maximum(own.smoothing, lengths)
            share = β / β.sum()
        return Combined(stack.combination(share))
