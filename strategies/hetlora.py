"""HetLoRA, server side (Cho et al. 2024): matrices of unequal rank, cut to size for clients, and padded for the mean.

A client of rank k is sent the first k rows of A and columns of B. The new matrices are Σ_k q_k·A_k and Σ_k q_k·B_k,
with zeros where a client has no entries, and q_k ∝ ‖B_k·A_k‖ over all layers (sparsity-weighted aggregation), or
FedAvg's weights. A client that has pruned itself (``clients/hetlora.py``) has the lower rank from then on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from florilegium.clients.hetlora import RANK
from florilegium.models.low_rank import A, B, Matrix, mean, product
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.ranked import Ranked, Trained


class HetLoRA(Ranked):
    """Averages padded matrices, and keeps the ranks to which clients have pruned themselves.

    Attributes:
        pruned: the ranks of clients that have lowered theirs.
    """

    messages = Messages("single", features="whole")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.pruned: dict[str, int] = {}

    def size(self, client: str) -> float:
        """Return a client's rank, ⌈c·r⌉, or that to which it has pruned itself."""
        return min(super().size(client), self.pruned.get(client, math.inf))

    def combined(self, round: Round, model: Arrays, trained: Trained) -> Mapping[str, Matrix]:
        """Return the weighted means of the padded matrices; note the ranks of clients."""
        for client, rank in zip(trained.clients, trained.numbers[RANK], strict=True):
            if rank < self.size(client):  # false if it is not a number
                self.pruned[client] = int(rank)
        weights = self._weights(trained)
        names = (kind + layer for layer in self.layers for kind in (A, B))
        return {name: mean(trained.arrays, name, weights, model[name].shape) for name in names}

    def _weights(self, trained: Trained) -> list[float]:
        """Return q_k, whose sum is 1; FedAvg's weights if all products are zero."""
        if not self.hyper.sparsity:
            return trained.weights
        norms = [math.hypot(*(product(arrays, layer).norm() for layer in self.layers)) for arrays in trained.arrays]
        return [norm / sum(norms) for norm in norms] if sum(norms) else trained.weights

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the ranks of clients that have lowered theirs, for checkpoints."""
        arrays, facts = super().state()
        return arrays, facts | {"pruned": self.pruned}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the ranks of clients."""
        super().restore(arrays, facts)
        self.pruned = {client: int(rank) for client, rank in facts["pruned"].items()}
