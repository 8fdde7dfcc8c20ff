"""HetLoRA, client side (Cho et al. 2024): local training that may lower the client's own rank.

Receives matrices of rank k. With t = ⌊γ·k⌋ ≥ 1, minimises F_k + λ·P, where P = Σ_l ‖A_l[t:]‖·‖B_l[:, t:]‖ over the
layers l is a penalty on the last rows and columns. If P has become smaller than it was, they are dropped, and the
client's rank is t. Returns the matrices, with zeros where they were pruned, and its rank. With γ = 1 nothing is pruned.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import Range, Reports
from florilegium.clients.core.training import GradientHook
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.ranked import RankedClient
from florilegium.models.low_rank import A, B, ranks_of
from florilegium.models.parameters import Arrays, trained

RANK = "rank"
"""Name of the number by which a client reports its rank."""


class HetLoRAClient(RankedClient):
    """Trains matrices of its own rank, with a penalty on the last of their rows, which it may drop."""

    training = Training("gradients")
    reports: ClassVar[Reports] = {RANK: Range(1.0, float(1 << 20))}

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received matrices; return them without what is pruned, the mean loss and the rank."""
        rank = max(ranks_of(arrays).values())
        self._kept = max(1, math.floor(self.hyper.decay * rank))
        before = prunable(arrays, self._kept)
        answer = super().train(arrays)
        if prunable(answer.arrays, self._kept) < before:
            rank = self._kept
            for layer in self.ranks:
                answer.arrays[A + layer][rank:] = 0
                answer.arrays[B + layer][:, rank:] = 0
        answer.metrics[RANK] = float(rank)
        return answer

    def gradient_hook(self) -> GradientHook | None:
        """Return a hook that adds the penalty's gradient, before that of any client of unequal rank."""
        lacking = super().gradient_hook()
        parameters, λ = trained(self.model), self.hyper.penalty
        pairs = [(parameters[A + layer], parameters[B + layer]) for layer in self.ranks]

        @torch.no_grad()
        def hook(model: nn.Module, rows: Tensor) -> None:
            for a, b in pairs:
                last_a, last_b = a[self._kept :], b[:, self._kept :]
                norm_a, norm_b = float(last_a.norm()), float(last_b.norm())
                if norm_a and a.grad is not None:  # at zero, 0 is a subgradient of the norm
                    a.grad[self._kept :].add_(last_a, alpha=λ * norm_b / norm_a)
                if norm_b and b.grad is not None:
                    b.grad[:, self._kept :].add_(last_b, alpha=λ * norm_a / norm_b)
            if lacking is not None:
                lacking(model, rows)

        return hook


def prunable(arrays: Arrays, kept: int) -> float:
    """Return P = Σ_l ‖A_l[t:]‖·‖B_l[:, t:]‖ with t = ``kept``, over the layers l among ``arrays``."""
    return sum(
        float(np.linalg.norm(arrays[A + layer][kept:]) * np.linalg.norm(arrays[B + layer][:, kept:]))
        for layer in ranks_of(arrays)
    )
