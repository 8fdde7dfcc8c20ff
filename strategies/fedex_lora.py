"""FedEx-LoRA, server side (Singhal et al. 2025): means of A and B, and what these miss goes into the base.

With p_k normalised, Ā = Σ_k p_k·A_k, B̄ = Σ_k p_k·B_k. The mean of the clients' updates is s·Σ_k p_k·B_k·A_k, but the
new matrices give s·B̄·Ā; the difference is added to the frozen weights, as their correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from florilegium.models.low_rank import CORRECTION, A, B, Matrix, mean, product, total
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.ranked import Ranked, Trained


class FedExLoRA(Ranked):
    """Averages A and B, and adds to the frozen weights what the product of the means lacks."""

    messages = Messages("single", features="whole")
    corrects: ClassVar[bool] = True

    def combined(self, round: Round, model: Arrays, trained: Trained) -> Mapping[str, Matrix]:
        """Return Ā, B̄, and the corrections, raised by s·(Σ_k p_k·B_k·A_k − B̄·Ā)."""
        s, found = self.settings.adapter.scale, dict[str, Matrix]()
        for layer in self.layers:
            means = {
                name: mean(trained.arrays, name, trained.weights, model[name].shape) for name in (A + layer, B + layer)
            }
            # The matrices are kept as the model's numbers: what rounding takes from the product is corrected, too.
            kept = {name: array.astype(model[name].dtype) for name, array in means.items()}
            missing = total(trained.arrays, layer, trained.weights).whole - product(kept, layer).whole
            found |= means | {CORRECTION + layer: model[CORRECTION + layer] + s * missing}
        return found
