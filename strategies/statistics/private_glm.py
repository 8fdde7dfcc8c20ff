"""Private fits of generalised linear models: noisy sums, and intervals that count the noise.

A row has inputs z with a 1 for the intercept, clipped to norm R. Logistic and multinomial models: one row changes the
gradient by ρR and the Hessian by νR² at most (Frobenius norm), where ρ bounds y − μ and ν the slope V. Each of T steps
releases both with Gaussian noise. Linear models: rows (z, y/B) are clipped together to norm R, and one release of the
products, which R² bounds, gives the fit (Vu, Slavković 2009; Sheffet 2017).

The last step is θ_T = θ + H̃⁻¹(g + ξ). Where θ is near the estimate θ̂ already, θ_T − θ̂ is H̃⁻¹ξ, so that the covariance
of θ_T about the true parameters is dispersion·H̃⁻¹ + σ²H̃⁻², and less than σ_H²(‖θ − θ̂‖²)·H̃⁻² more through the noise of
the Hessian.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.hyper.statistics import GLMHyper
from florilegium.clients.statistics.private import symmetric
from florilegium.clients.statistics.private_glm import each_of, private_family, releases_of, scales_of
from florilegium.common.errors import ConfigurationError
from florilegium.models.parameters import Arrays
from florilegium.privacy.accounting import Release, total
from florilegium.privacy.noise import draw

Ask = Callable[[str, Mapping[str, tuple[int, ...]]], tuple[Arrays, int]]
"""Has all clients carry out a phase; returns the sums of these shapes, and of how many clients they are."""
Array = NDArray[np.float64]


class PrivateGLM:
    """The noise and the steps of a private fit, for one run.

    Args:
        hyper: the keys.
        name: name of the family.

    Raises:
        ConfigurationError: if the family's residuals have no bound, or a linear model lacks one of its targets.
    """

    def __init__(self, hyper: GLMHyper, name: str) -> None:
        self._hyper, self._name, self._linear = hyper, name, name == "linear"
        if name in ("linear", "poisson") and not hyper.target_bound:
            raise ConfigurationError(
                f"glm.target-bound: a private {name} model needs a bound of its targets that does not come from the "
                "data, since one row could move its sums by any amount"
            )
        self._family = private_family(hyper, name)
        self._releases, self._each = releases_of(hyper, name), each_of(hyper, name)

    def begin(self, rounds: int, *, resumed_on_devices: bool) -> None:
        """Check that a run of this many rounds may begin, or go on.

        Raises:
            ConfigurationError: if real devices would be asked twice for what was released.
        """
        if resumed_on_devices:
            raise ConfigurationError(
                "resume: a private run of real devices cannot be resumed: what was requested and lost counts as "
                "released, and requesting it again would exceed the budget"
            )
        if rounds < self._steps:
            raise ConfigurationError(
                f"rounds: a private fit takes {self._steps} (found: {rounds}); raise it, or lower glm.steps"
            )

    @property
    def _steps(self) -> int:
        return 1 if self._linear else self._hyper.steps

    def finished(self, server_round: int) -> bool:
        """Return whether all steps are taken."""
        return server_round >= self._steps

    def guarantee(self) -> dict[str, Any]:
        """Return the privacy guarantee, as in ``summary.json``."""
        spent = total([Release("gaussian", self._each, self._releases)], self._hyper.delta)
        return {"unit": "example", "epsilon": spent, "delta": self._hyper.delta, "clip": self._hyper.clip,
                "noise_multiplier": self._each, "releases": self._releases}  # fmt: skip

    def start(self, d: int, m: int) -> Arrays:
        """Return what clients are sent in the first step, besides the places of the d columns; m linear predictors."""
        return {"center": np.zeros(d), "scale": np.ones(d), "theta": np.zeros((m, d + 1)), "intercepts": np.zeros(m)}

    def step(self, ask: Ask, θ: Array, rng: np.random.Generator) -> Arrays:
        """Return ``theta`` after one more step, and its ``covariance``; ``rng`` draws the server's noise."""
        by_clients = self._hyper.noise == "client"
        if self._linear:
            q = θ.shape[1] + 1
            found, clients = ask("products", {"products": (q, q)})
            wider = sqrt(clients) if by_clients else 1.0
            scale = wider * self._each * self._hyper.clip**2
            return linear(found["products"], scale, self._hyper.target_bound, None if by_clients else rng)
        found, clients = ask("newton", {"gradient": (θ.size,), "hessian": (θ.size, θ.size)})
        wider = sqrt(clients) if by_clients else 1.0
        first, second = (wider * scale for scale in scales_of(self._hyper, self._family, self._name))
        step = newton(found["gradient"], found["hessian"], θ, (first, second), None if by_clients else rng)
        return step | {"theta": _from_zero(step["theta"])} if self._name == "poisson" and not θ.any() else step


def _from_zero(θ: Array) -> Array:
    """Return where a Poisson fit goes on after its first step, from 0, where all means are 1.

    That step finds the mean of the counts, 1 + θ₀, and linear slopes of it; means are exponentials.
    """
    mean = max(1.0 + float(θ[0, 0]), 1e-3)
    return np.concatenate([[np.log(mean)], θ[0, 1:] / mean])[None]


def newton(
    gradient: Array, hessian: Array, θ: Array, scales: tuple[float, float], rng: np.random.Generator | None
) -> Arrays:
    """Return ``theta`` after a step of sums with noise, and its ``covariance``.

    Args:
        gradient, hessian: sums over all rows at θ, (k,) and (k, k).
        θ: the parameters, (m, q) with m·q = k.
        scales: standard deviations of the noise on gradient and Hessian.
        rng: draws the noise; None: the sums have it already.
    """
    noisy = gradient if rng is None else gradient + draw(rng, "gaussian", scales[0], gradient.shape)
    inverse, hessian = _inverse(hessian, scales[1], rng)
    step = inverse @ noisy
    reach = scales[0] ** 2 + scales[1] ** 2 * float(np.trace(inverse @ inverse)) * scales[0] ** 2
    return {"theta": θ + step.reshape(θ.shape), "covariance": inverse + reach * inverse @ inverse}


def linear(products: Array, scale: float, bound: float, rng: np.random.Generator | None) -> Arrays:
    """Return ``theta`` (1, q) of a linear model from products (q + 1, q + 1) with noise, and its ``covariance``.

    Args:
        products: Σ vvᵀ of the rows v = (1, x, y/bound).
        scale: standard deviation of the noise.
        bound: B; the products are of y/B.
        rng: draws the noise; None: the products have it already.
    """
    noisy = products if rng is None else products + symmetric(draw(rng, "gaussian", scale, products.shape))
    inverse, a = _bounded(noisy[:-1, :-1], scale)
    β = inverse @ noisy[:-1, -1]
    rows = max(float(noisy[0, 0]), len(β) + 2.0)
    residual = max(float(noisy[-1, -1] - 2 * β @ noisy[:-1, -1] + β @ a @ β), 0.0)
    variance = residual / (rows - len(β))
    covariance = variance * inverse + scale**2 * (1 + float(β @ β)) * inverse @ inverse
    return {"theta": bound * β[None], "covariance": bound**2 * covariance}


def _inverse(hessian: Array, scale: float, rng: np.random.Generator | None) -> tuple[Array, Array]:
    """Return the inverse of a Hessian with noise, and the Hessian."""
    noise = 0.0 if rng is None else symmetric(draw(rng, "gaussian", scale, hessian.shape))
    return _bounded(hessian + noise, scale)


def _bounded(matrix: Array, scale: float) -> tuple[Array, Array]:
    """Return inverse and matrix, with eigenvalues of at least what noise of this scale alone would have, 2σ√k."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.maximum(values, 2 * scale * sqrt(len(values)))
    return (vectors / values) @ vectors.T, (vectors * values) @ vectors.T
