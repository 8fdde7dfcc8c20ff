"""FlexLoRA, server side (Bai et al. 2024): the mean update is taken apart again, as well as each client's rank allows.

With p_k normalised, W = Σ_k p_k·B_k·A_k = U·Σ·Vᵀ, singular values falling. The new matrices are B = U·Σ and A = Vᵀ, cut
to rank r. Their first k columns and rows are the best approximation of W of rank k; a client of rank k gets these.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from florilegium.models.low_rank import A, B, Matrix, completed, total
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.ranked import Ranked, Trained


class FlexLoRA(Ranked):
    """Replaces the matrices by the leading components of the mean of all clients' products."""

    messages = Messages("single", features="whole")

    def combined(self, round: Round, model: Arrays, trained: Trained) -> Mapping[str, Matrix]:
        """Return B = U·Σ and A = Vᵀ of rank r; where the mean has fewer components, rows of the present A follow."""
        rank, found = self.settings.adapter.rank, dict[str, Matrix]()
        for layer in self.layers:
            u, values, v = total(trained.arrays, layer, trained.weights).components()
            u, values, v = u[:, :rank], values[:rank], v[:rank]
            old = model[A + layer].reshape(rank, -1).astype(np.float64)
            found[A + layer] = completed(v, old, rank)
            found[B + layer] = np.pad(u * values, [(0, 0), (0, rank - len(values))])
        return found
