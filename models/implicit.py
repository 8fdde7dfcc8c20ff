"""Derivatives of trained parameters in hyper-parameters, by the implicit function theorem.

The method is that of Lorraine et al. 2020, as FedL2P uses it.
"""

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

    This is −v · (∂²_θ L_T)⁻¹ · ∂_λ∂_θ L_T. The inverse is approximated by the Neumann series
    ψ Σ_{j ≤ Q} (I − ψ ∂²_θ L_T)^j, which converges if ψ is below 2 over the largest curvature. It is never formed.

    L_T may be given as a sum of n parts, each over some of its examples. Then each term of the series uses the Hessian
    of one part alone, multiplied by n, and the parts take turns. If the parts are drawn independently, a product of
    such Hessians has the same expectation as the exact one, at 1/n of the work (as in LiSSA, Agarwal et al. 2017,
    section 3). ∂_λ∂_θ L_T always uses all parts.

    Args:
        v: gradient in θ of the quantity to differentiate.
        slopes: ∂_θ L_T at θ* and λ for each part, itself differentiable (``create_graph``).
        θ, λ: the parameters, and the hyper-parameters that they depend on.
        steps: Q, number of steps of the series.
        rate: ψ, step size of the series.
        scale: whether the sum is multiplied by ψ, as the formula for the inverse requires.
    """
    part, total = list(v), list(v)
    for j in range(steps):
        products = _gradients(slopes[j % len(slopes)], θ, part, keep=True)
        part = [a - rate * len(slopes) * b for a, b in zip(part, products, strict=True)]
        total = [a + b for a, b in zip(total, part, strict=True)]
    weights = [-rate * a if scale else -a for a in total]
    return _gradients([s for part in slopes for s in part], λ, weights * len(slopes), keep=False)


def _gradients(of: Sequence[Tensor], where: Sequence[Tensor], weights: Sequence[Tensor], *, keep: bool) -> list[Tensor]:
    """Return the gradient of Σ ⟨weights, of⟩ in each tensor of ``where``; zeros if the sum does not depend on it."""
    return list(
        torch.autograd.grad(
            list(of), list(where), list(weights), retain_graph=keep, allow_unused=True, materialize_grads=True
        )
    )
