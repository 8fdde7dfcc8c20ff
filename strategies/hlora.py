"""HLoRA, server side: the mean update is taken apart at its own rank, which its singular values reveal.

With p_k normalised, W = Σ_k p_k·B_k·A_k = U·Σ·Vᵀ. The components whose singular value is above a share of the largest,
key ``ranks.tolerance``, at most r, become B = U and A = Σ·Vᵀ; their number m is the rank of the layer. A client of rank
k is sent the first min(k, m) of them. A mean of products may have a higher rank than each of them, so m can rise again.

After Liu et al. 2025 and NVFlare's example of it (pull request 4424, 2026).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from florilegium.models.low_rank import A, B, Matrix, total
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.ranked import Ranked, Trained


class HLoRA(Ranked):
    """Replaces the matrices by the components that the mean of all clients' products has."""

    messages = Messages("single", features="whole")

    def ranks(self, model: Arrays, rank: int) -> dict[str, int]:
        """Return the rank of each layer for a client: its own, or the layer's if that is lower."""
        return {layer: min(rank, revealed(model[A + layer])) for layer in self.layers}

    def combined(self, round: Round, model: Arrays, trained: Trained) -> Mapping[str, Matrix]:
        """Return B = U and A = Σ·Vᵀ of the components that count, and zeros behind them."""
        rank, found = self.settings.adapter.rank, dict[str, Matrix]()
        for layer in self.layers:
            u, values, v = total(trained.arrays, layer, trained.weights).components()
            count = min(rank, int(np.sum(values > self.hyper.tolerance * values[0])))
            if not count:  # nobody has changed B yet
                continue
            behind = (0, rank - count)
            found[A + layer] = np.pad(values[:count, None] * v[:count], [behind, (0, 0)])
            found[B + layer] = np.pad(u[:, :count], [(0, 0), behind])
        return found


def revealed(matrix: Matrix) -> int:
    """Return the rank of a layer from its A: the number of rows before those that are zero, at least 1."""
    return max(1, int(np.sum(matrix.reshape(len(matrix), -1).any(axis=1))))
