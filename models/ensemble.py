"""A weighted ensemble of networks as one network (PPFE, equation 8)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

COMBINATIONS = ("probabilities", "logits", "last")


class Ensemble(nn.Module):
    """Σ_t β_t·model_t / Σ_t β_t, as log-probabilities or logits.

    Args:
        members: the networks, oldest first.
        weights: their coefficients β_t ≥ 0; if all are 0, every member counts alike.
        combination: whether "probabilities" or "logits" are averaged, or only the "last" member counts.
    """

    weights: Tensor

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float], combination: str) -> None:
        super().__init__()
        if combination not in COMBINATIONS or len(members) != len(weights) or not members:
            raise ValueError(f"{len(members)} members, {len(weights)} weights, combination '{combination}'")
        self.members = nn.ModuleList(members)
        self.combination = combination
        β = torch.tensor(weights, dtype=torch.float32)
        if combination == "last":
            β = torch.zeros_like(β)
            β[-1] = 1
        β = β / β.sum() if float(β.sum()) > 0 else torch.full_like(β, 1 / len(β))
        self.register_buffer("weights", β.to(next(members[0].parameters()).device))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, C): logits, or the logarithm of the averaged probabilities, whose softmax they are."""
        used = [(β, member(x)) for β, member in zip(self.weights, self.members, strict=True) if float(β) > 0]
        if self.combination == "logits":
            return torch.stack([β * logits for β, logits in used]).sum(dim=0)
        return torch.logsumexp(torch.stack([β.log() + logits.log_softmax(dim=1) for β, logits in used]), dim=0)
