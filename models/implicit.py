"""Derivatives of what training leads to, by the implicit function theorem (Lorraine et al. 2020; FedL2P)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def implicit_derivative(
    v: Sequence[Tensor],
    slopes: Sequence[Sequence[Tensor]],
    θ: Sequence[Tensor],
    λ: Sequence[Tensor],
    *,
    steps: int,
    rate: float,
    scale: bool,
) -> list[Tensor]:
    """Return v·dθ*(λ)/dλ, where θ* minimises a loss L_T(θ, λ).

    That is −v · (∂²_θ L_T)⁻¹ · ∂_λ∂_θ L_T. The inverse is ψ Σ_{j ≤ Q} (I − ψ ∂²_θ L_T)^j, which converges where ψ is
    below 2 over the largest curvature; it is never formed.

    L_T may come as a sum of parts, each of some of its examples. Then the terms of the series take turns with their
    Hessians, each of one part alone, n times it, n being their number: where parts are drawn independently, the
    product of several has the expectation that the exact one has, at an n-th of the work (as in LiSSA, Agarwal et al.
    2017, section 3). ∂_λ∂_θ L_T is of all parts.

    Args:
        v: the gradient in θ of what is to be differentiated.
        slopes: ∂_θ L_T at θ* and λ, part by part, itself differentiable (``create_graph``).
        θ, λ: the parameters, and what they depend on.
        steps: Q.
        rate: ψ.
        scale: whether the sum is multiplied by ψ, as the inverse needs it.
    """
    part, total = list(v), list(v)
    for j in range(steps):
        products = _gradients(slopes[j % len(slopes)], θ, part, keep=True)
        part = [a - rate * len(slopes) * b for a, b in zip(part, products, strict=True)]
        total = [a + b for a, b in zip(total, part, strict=True)]
    weights = [-rate * a if scale else -a for a in total]
    return _gradients([s for part in slopes for s in part], λ, weights * len(slopes), keep=False)


def _gradients(of: Sequence[Tensor], where: Sequence[Tensor], weights: Sequence[Tensor], *, keep: bool) -> list[Tensor]:
    """Return the gradient of Σ ⟨weights, of⟩ in ``where``, zeros where nothing depends on it."""
    return list(
        torch.autograd.grad(
            list(of), list(where), list(weights), retain_graph=keep, allow_unused=True, materialize_grads=True
        )
    )
