"""FLoRA, server side (Wang et al. 2024): clients' matrices are stacked, and the exact mean update joins the base.

With p_k normalised, Σ_k p_k·B_k·A_k = [p_1·B_1, p_2·B_2, …]·[A_1; A_2; …], whatever the clients' ranks. s times this is
added to the frozen weights, as their correction. The matrices then start anew: A drawn as at first, B = 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from florilegium.common.seeds import numpy_generator
from florilegium.models.low_rank import CORRECTION, A, B, Matrix, total
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.ranked import Ranked, Trained


class FLoRA(Ranked):
    """Adds the mean of all clients' products to the frozen weights, and lets the matrices start anew."""

    messages = Messages("single", features="whole")
    corrects: ClassVar[bool] = True

    def combined(self, round: Round, model: Arrays, trained: Trained) -> Mapping[str, Matrix]:
        """Return the corrections, raised by s·Σ_k p_k·B_k·A_k, and new matrices."""
        s, found = self.settings.adapter.scale, dict[str, Matrix]()
        for layer in self.layers:
            update = total(trained.arrays, layer, trained.weights).whole
            found[CORRECTION + layer] = model[CORRECTION + layer] + s * update
            found[A + layer] = self._drawn(model[A + layer].shape, round.number, layer)
            found[B + layer] = np.zeros(model[B + layer].shape)
        return found

    def _drawn(self, shape: tuple[int, ...], number: int, layer: str) -> Matrix:
        """Return a new A, uniform in ±1/√inputs as PEFT draws it."""
        bound = 1 / math.sqrt(math.prod(shape[1:]))
        return numpy_generator(self.settings.seed, "flora", number, layer).uniform(-bound, bound, shape)
