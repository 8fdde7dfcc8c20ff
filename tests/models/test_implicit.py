"""Implicit differentiation: closed forms of quadratic losses, and the Neumann series."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from florilegium.models.implicit import implicit_derivative


def _problem() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return H, A, t and λ of L_T = ½(θ − Aλ)ᵀH(θ − Aλ) and L_V = ½‖θ − t‖²."""
    generator = torch.Generator().manual_seed(1)
    root, a, t, λ = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in ((4, 4), (4, 3), (4,), (3,)))
    return root @ root.T + torch.eye(4, dtype=torch.float64), a, t, λ


def _found(steps: int, rate: float, scale: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    h, a, t, λ = _problem()
    λ.requires_grad_()
    θ = (a @ λ).detach().requires_grad_()
    away = θ - a @ λ
    slopes = torch.autograd.grad(0.5 * away @ h @ away, [θ], create_graph=True)
    v = (θ - t).detach()
    (found,) = implicit_derivative([v], [slopes], [θ], [λ], steps=steps, rate=rate, scale=scale)
    return found.numpy(), h.numpy(), a.numpy(), v.numpy()


def test_many_steps_give_the_exact_derivative() -> None:
    """θ*(λ) = Aλ, so that dL_V/dλ = Aᵀ(Aλ − t)."""
    found, _, a, away = _found(4000, 1 / np.linalg.eigvalsh(_problem()[0].numpy()).max(), scale=True)
    np.testing.assert_allclose(found, a.T @ away, rtol=1e-8)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_few_steps_are_the_truncated_series(steps: int, scale: bool) -> None:
    """∂_λ∂_θ L_T = −HA, and the inverse is ψ Σ_j (I − ψH)^j, or the sum alone."""
    ψ = 0.05
    found, h, a, away = _found(steps, ψ, scale)
    series = sum(np.linalg.matrix_power(np.eye(4) - ψ * h, j) for j in range(steps + 1))
    expected = (ψ if scale else 1) * away @ series @ h @ a
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_terms_take_turns_with_the_parts_of_a_loss() -> None:
    """Of Σ_k ½(θ − A_k λ)ᵀH_k(θ − A_k λ), k = 1, 2: terms have Hessians 2·H_k, the mixed derivative is −Σ H_k A_k."""
    h, a, _, λ = _problem()
    λ.requires_grad_()
    θ, parts = torch.ones(4, dtype=torch.float64, requires_grad=True), [(h, a), (0.3 * h @ h, 2 * a)]
    slopes = [torch.autograd.grad(0.5 * (θ - ak @ λ) @ hk @ (θ - ak @ λ), [θ], create_graph=True) for hk, ak in parts]
    v, ψ = torch.arange(4, dtype=torch.float64), 0.01
    (found,) = implicit_derivative([v], slopes, [θ], [λ], steps=3, rate=ψ, scale=True)
    factors = [np.eye(4) - 2 * ψ * hk.numpy() for hk, _ in parts]
    terms = [np.eye(4), factors[0], factors[1] @ factors[0], factors[0] @ factors[1] @ factors[0]]
    mixed = sum(hk @ ak for hk, ak in parts).numpy()
    np.testing.assert_allclose(found.numpy(), ψ * (sum(terms) @ v.numpy()) @ mixed, rtol=1e-10)


def test_what_nothing_depends_on_has_no_derivative() -> None:
    θ, λ = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    slopes = torch.autograd.grad(θ.pow(4).sum(), [θ], create_graph=True)
    found = implicit_derivative([torch.ones(2)], [slopes], [θ], [λ], steps=2, rate=0.1, scale=True)
    assert found[0].tolist() == [0, 0, 0]
