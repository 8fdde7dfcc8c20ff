"""Derivatives of what training leads to, by the implicit function theorem (Lorraine et al. 2020; FedL2P)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def total_derivative(
    loss: Tensor,
    slopes: Sequence[Tensor],
    θ: Sequence[Tensor],
    λ: Sequence[Tensor],
    *,
    steps: int,
    rate: float,
    scale: bool,
) -> list[Tensor]:
    """Return d loss(θ*(λ), λ)/dλ, where θ* minimises another loss, L_T(θ, λ).

    That is ∂_λ loss − ∂_θ loss · (∂²_θ L_T)⁻¹ · ∂_λ∂_θ L_T. The inverse is ψ Σ_{j ≤ Q} (I − ψ ∂²_θ L_T)^j, which
    converges where ψ is below 2 over the largest curvature; it is never formed.

    Args:
        loss: what is differentiated, at θ* and λ.
        slopes: ∂_θ L_T there, itself differentiable (``create_graph``).
        θ, λ: the parameters, and what they depend on.
        steps: Q.
        rate: ψ.
        scale: whether the sum is multiplied by ψ, as the inverse needs it.
    """
    v = _gradients([loss], θ, None)
    total = list(v)
    for _ in range(steps):
        products = _gradients(slopes, θ, v)
        v = [part - rate * product for part, product in zip(v, products, strict=True)]
        total = [a + b for a, b in zip(total, v, strict=True)]
    weights = [rate * part for part in total] if scale else total
    direct, implicit = _gradients([loss], λ, None), _gradients(slopes, λ, weights)
    return [a - b for a, b in zip(direct, implicit, strict=True)]


def _gradients(of: Sequence[Tensor], where: Sequence[Tensor], weights: Sequence[Tensor] | None) -> list[Tensor]:
    """Return the gradient of Σ ⟨weights, of⟩ in ``where``, zeros where nothing depends on it; the graph is kept."""
    return list(
        torch.autograd.grad(
            list(of), list(where), grad_outputs=weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    )
