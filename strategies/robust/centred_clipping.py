"""Centred clipping (Karimireddy, He and Jaggi 2021, Algorithm 2): v ← v + (1/n)·Σ (xᵢ − v)·min(1, τ/‖xᵢ − v‖).

v starts from the combined update of the last round, 0 before the first. With ``robust.momentum`` the xᵢ are means of
each client's updates over rounds, as in the paper's Algorithm 3.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from florilegium.common.settings import Section, key
from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack

CENTRE = "_centre"
"""Name under which v is kept."""


class CentredClippingKeys(Section):
    """Keys of centred clipping."""

    title = "Robust rule `centred-clipping`"

    radius: float = key(0.0, "τ, clipping radius; 0: the median of the distances ‖xᵢ − v‖ before the first step", ge=0)
    iterations: int = key(1, "L, number of steps in a round", ge=1)


class CentredClipping(Rule):
    """Moves the last round's update by clipped differences."""

    title = "the last update, moved by the mean of clipped differences from it"
    source = "Karimireddy et al. 2021"
    keys = CentredClippingKeys

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return v after all steps, and keep it for the next round."""
        own = cast(CentredClippingKeys, self.settings)
        zeros = {name: np.zeros(array.shape[1:]) for name, array in stack.arrays.items()}
        before = zeros | {
            n: a for n, a in around.remembered(CENTRE).items() if n in zeros and a.shape == zeros[n].shape
        }
        # v = v₀ + Σ bᵢ·yᵢ with yᵢ = xᵢ − v₀; the first step needs their lengths alone, later ones their inner products
        products = stack.products(before) if own.iterations > 1 else None
        b, radius = np.zeros(len(stack)), own.radius
        for _ in range(own.iterations):
            if products is None:
                lengths = stack.lengths(before)
            else:
                inner = products @ b
                lengths = np.sqrt(np.maximum(np.diag(products) - 2 * inner + b @ inner, 0.0))
            radius = radius or float(np.median(lengths))
            λ = np.minimum(1.0, radius / np.maximum(lengths, np.finfo(float).tiny)) / len(stack)
            b = b * (1 - λ.sum()) + λ
        moved = stack.combination(b)
        found = {name: moved[name] + (1 - b.sum()) * before[name] for name in zeros}
        around.remember(CENTRE, found)
        return Combined(found)
