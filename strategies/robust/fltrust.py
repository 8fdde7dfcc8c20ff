"""FLTrust (Cao, Fang, Liu and Gong 2021, Algorithm 2): updates count as far as they point where the server's own does.

TSᵢ = max(0, cos(gᵢ, g₀)); the combined update is Σ TSᵢ·(‖g₀‖/‖gᵢ‖)·gᵢ / Σ TSᵢ, with the server's own update g₀.
"""

from __future__ import annotations

import numpy as np

from florilegium.strategies.robust.rule import Combined, Rule, Surroundings
from florilegium.strategies.robust.stack import Stack


class FLTrust(Rule):
    """Weights updates by the cosine of their angle to the server's own; if none is below a right angle, returns 0."""

    title = "the mean of updates of the length of the server's own, weighted by their cosines with it"
    needs = (0, 1)
    source = "Cao et al. 2021"
    trusts = True

    def combine(self, stack: Stack, around: Surroundings) -> Combined:
        """Return the weighted mean."""
        own = around.trusted()
        inner, squares = stack.against(own)
        lengths, length = np.sqrt(squares), np.sqrt(sum(float(np.vdot(array, array)) for array in own.values()))
        usable = lengths * length > 0
        cosines = np.divide(inner, lengths * length, out=np.zeros(len(stack)), where=usable)
        trust = np.maximum(0.0, cosines)
        scaled = np.divide(trust * length, lengths, out=np.zeros(len(stack)), where=usable)
        total = trust.sum()
        return Combined(stack.combination(scaled / total if total else scaled), trust == 0)
