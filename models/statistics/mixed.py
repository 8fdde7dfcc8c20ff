"""A random intercept for each client: restricted maximum likelihood from sums over clients (Harville 1977).

y_k = X_k β + 1·u_k + e, with u_k ~ N(0, λσ²) and e ~ N(0, σ²I). A client with n_k rows has V_k = I + λ11ᵀ, and
V_k⁻¹ = I − w_k 11ᵀ with w_k = λ / (1 + λ n_k), log det V_k = log(1 + λ n_k). So for a given λ the likelihood needs sums
over clients of M_kᵀM_k − w_k s_k s_kᵀ, with M_k = (X_k, y_k) and s_k = M_kᵀ1, and of log(1 + λ n_k), and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SMALLEST, LARGEST, POINTS = -6.0, 6.0, 25
"""The first range of log₁₀ λ, and how many values of λ are tried in an exchange."""
FINE = 1e-5
"""Distance of the last values of log₁₀ λ."""


def sums(matrix: Array, ratios: Array) -> dict[str, Array]:
    """Return a client's ``products`` (L, q + 1, q + 1) and ``determinants`` (L,) for L values of λ.

    Args:
        matrix: (X, y) of its n rows, (n, q + 1).
        ratios: values of λ, (L,).
    """
    n, s = len(matrix), matrix.sum(axis=0)
    weights = ratios / (1 + ratios * n)
    products = (matrix.T @ matrix)[None] - weights[:, None, None] * np.outer(s, s)
    return {"products": products, "determinants": np.log1p(ratios * n)}


@dataclass(frozen=True)
class Fit:
    """The best coefficients for one λ.

    Attributes:
        coefficients: β (q,).
        covariance: of β, (q, q).
        variance: σ².
        likelihood: the restricted log-likelihood.
    """

    coefficients: Array
    covariance: Array
    variance: float
    likelihood: float


def fit(products: Array, determinant: float, n: int) -> Fit:
    """Return the fit for one λ, from the sums over all clients, products (q + 1, q + 1), of n rows.

    Raises:
        numpy.linalg.LinAlgError: if the columns of X are collinear.
    """
    a, b, c = products[:-1, :-1], products[:-1, -1], products[-1, -1]
    q = len(b)
    inverse = np.linalg.inv(np.linalg.cholesky(a))
    inverse = inverse.T @ inverse
    β = inverse @ b
    residual = float(c - b @ β)
    σ2 = residual / (n - q)
    log_det = float(np.linalg.slogdet(a)[1])
    likelihood = -0.5 * ((n - q) * (np.log(2 * np.pi * σ2) + 1) + determinant + log_det)
    return Fit(β, σ2 * inverse, σ2, float(likelihood))


def first_ratios() -> Array:
    """Return the values of λ of the first exchange, 0 among them."""
    return np.concatenate([[0.0], 10 ** np.linspace(SMALLEST, LARGEST, POINTS)])


def next_ratios(ratios: Array, best: int) -> Array | None:
    """Return the values of λ around the best of ``ratios``, closer together; None if they are close enough.

    If 0 is the best, or the best is the smallest or largest that is tried, there is nothing to go on with.
    """
    logs = np.log10(ratios[1:])
    step = float(logs[1] - logs[0])
    if best == 0 or step <= FINE:
        return None
    return np.concatenate([[0.0], 10 ** np.linspace(logs[best - 1] - step, logs[best - 1] + step, POINTS)])
