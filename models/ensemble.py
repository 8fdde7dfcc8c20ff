"""A weighted ensemble of networks as one network (PPFE, equation 8)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

COMBINATIONS = ("probabilities", "logits", "last")


def combine(outputs: Sequence[Tensor], weights: Sequence[float] | Tensor, combination: str) -> Tensor:
    """Return Σ_t β_t·output_t / Σ_t β_t for logits of several networks: logits, or log-probabilities (n, C).

    Args:
        outputs: logits (n, C) of each member, oldest first.
        weights: their coefficients β_t ≥ 0; if all are 0, all members have equal weight.
        combination: whether "probabilities" or "logits" are averaged, or only the "last" member is used.
    """
    if combination == "last":
        return outputs[-1]
    β = torch.as_tensor(weights, dtype=torch.float64, device=outputs[-1].device)
    shares = torch.where(β.sum() > 0, β / β.sum(), torch.ones_like(β) / len(β))[:, None, None]
    # A member of weight 0 must not affect the result, even if its outputs are not finite.
    stacked = torch.where(shares > 0, torch.stack(list(outputs)), 0)
    if combination == "logits":
        return (shares * stacked).sum(dim=0).to(stacked.dtype)
    return torch.logsumexp(shares.log().to(stacked.dtype) + stacked.log_softmax(dim=2), dim=0)


class Ensemble(nn.Module):
    """Several networks as one, whose outputs :func:`combine` averages.

    Args:
        members: the networks, oldest first.
        weights: their coefficients β_t ≥ 0.
        combination: how their outputs are combined, as in :func:`combine`.
    """

    weights: Tensor

    def __init__(self, members: Sequence[nn.Module], weights: Sequence[float], combination: str) -> None:
        super().__init__()
        if combination not in COMBINATIONS or len(members) != len(weights) or not members:
            raise ValueError(f"{len(members)} members, {len(weights)} weights, combination '{combination}'")
        self.members = nn.ModuleList(members)
        self.combination = combination
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or log-probabilities, (n, C); the softmax of both gives the ensemble's probabilities."""
        return combine([member(x) for member in self.members], self.weights, self.combination)
