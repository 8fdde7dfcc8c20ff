"""Generalised linear models with canonical links: what is summed over rows, and the Newton step of the sums.

Row i has inputs z_i (q,), m linear predictors η_i = θ z_i + offset, means μ_i = μ(η_i), and targets y_i (m,): one
number, or indicators of the classes but the first. With prior weights w_i,

    gradient  Σ w_i (y_i − μ_i) z_iᵀ,    Hessian  Σ w_i V(μ_i) ⊗ z_i z_iᵀ    (McCullagh, Nelder 1989, section 2.5)

where V = ∂μ/∂η, since the link is canonical: Newton's steps are those of iteratively reweighted least squares.
Parameters of (m, q) are flattened by rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ALIASED = 1e-10
"""Share of a column's variance that columns before it leave unexplained; below, it is a combination of these."""
_TOO_LARGE = 60.0
"""Linear predictors of Poisson models beyond this number count as it: e⁶⁰ is no mean of counts."""
_CAP = 1e14
"""Entries of sums beyond this count as it; only steps that are halved anyway lead to such."""
_STEPS = 100
EDGE = 30.0
"""Largest intercept of a client whose rows are all of one class, for which no finite one is the best."""


@dataclass(frozen=True)
class Family:
    """A distribution with its canonical link.

    Attributes:
        mean: μ(η), (n, m) of (n, m).
        slope: V(μ) = ∂μ/∂η, (n, m, m) of (n, m).
        loss: −log p of targets and η, (n,), without terms of the targets alone and, for normal errors, with σ = 1.
        link: η(μ), (m,) of (m,), for the first intercept.
        dispersed: whether σ² is estimated; otherwise it is 1.
        residual: the largest norm of y − μ; infinite if there is none.
        slope_norm: the largest Frobenius norm of V; infinite if there is none.
    """

    mean: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    loss: Callable[[Array, Array], Array]
    link: Callable[[Array], Array]
    dispersed: bool = False
    residual: float = np.inf
    slope_norm: float = np.inf


def _rate(η: Array) -> Array:
    rates: Array = np.exp(np.minimum(η, _TOO_LARGE))
    return rates


def _shares(η: Array) -> Array:
    """Return the probabilities of the classes but the first, (n, m)."""
    top = np.maximum(η.max(axis=1, keepdims=True), 0.0)
    powers = np.exp(η - top)
    shares: Array = powers / (np.exp(-top) + powers.sum(axis=1, keepdims=True))
    return shares


def _log_sum(η: Array) -> Array:
    top = np.maximum(η.max(axis=1), 0.0)
    result: Array = top + np.log(np.exp(-top) + np.exp(η - top[:, None]).sum(axis=1))
    return result


def _log_odds(μ: Array) -> Array:
    μ = np.clip(μ, 1e-6, 1.0)
    odds: Array = np.log(μ / np.clip(1 - μ.sum(), 1e-6, 1.0))
    return odds


_CHOICE = Family(
    _shares, lambda μ: μ[:, :, None] * (np.eye(μ.shape[1]) - μ[:, None, :]),
    lambda y, η: _log_sum(η) - (y * η).sum(axis=1), _log_odds, residual=2**0.5, slope_norm=0.5,
)  # fmt: skip


def bounded_poisson(bound: float) -> Family:
    """Return the Poisson family with means up to ``bound``, for counts up to it, so that one row moves sums little.

    The loss goes on as a line where the mean would exceed the bound, so that it stays convex.
    """
    top = float(np.log(bound))
    return Family(
        lambda η: np.exp(np.minimum(η, top)), lambda μ: np.where(μ < bound * (1 - 1e-9), μ, 0.0)[:, :, None],
        lambda y, η: (np.exp(np.minimum(η, top)) + bound * np.maximum(η - top, 0.0) - y * η)[:, 0],
        lambda μ: np.log(np.maximum(μ, 1e-6)), residual=bound, slope_norm=bound,
    )  # fmt: skip


FAMILIES: Mapping[str, Family] = {
    "linear": Family(
        lambda η: η, lambda μ: np.ones((*μ.shape, 1)), lambda y, η: 0.5 * ((y - η) ** 2)[:, 0], lambda μ: μ,
        dispersed=True,
    ),
    "logistic": Family(_CHOICE.mean, _CHOICE.slope, _CHOICE.loss, _log_odds, residual=1.0, slope_norm=0.25),
    "multinomial": _CHOICE,
    "poisson": Family(
        _rate, lambda μ: μ[:, :, None], lambda y, η: (_rate(η) - y * η)[:, 0], lambda μ: np.log(np.maximum(μ, 1e-6))
    ),
}  # fmt: skip
"""The families by name."""


@dataclass(frozen=True)
class Rows:
    """A client's rows, as the sums need them.

    Attributes:
        z: inputs (n, q), with a leading column of ones if all clients have one intercept.
        y: targets (n, m).
        weights: prior weights w ≥ 0, (n,).
        offset: a known part of every η, (n,).
    """

    z: Array
    y: Array
    weights: Array
    offset: Array

    def predictors(self, θ: Array) -> Array:
        """Return η (n, m) without a client's own intercept."""
        η: Array = self.z @ θ.T + self.offset[:, None]
        return η


def sums(family: Family, rows: Rows, θ: Array, *, own: bool = False) -> dict[str, Array]:
    """Return ``loss`` (), ``gradient`` (m·q,) and ``hessian`` (m·q, m·q) of the rows at θ (m, q).

    Args:
        family: the distribution.
        rows: the rows.
        θ: the parameters.
        own: whether the rows have an intercept α of their own, (m,), which is eliminated: α is the best one for θ, and
            the Hessian is what is left for θ (its Schur complement). Newton's steps of the sums over clients are then
            those of a fit with an indicator of each client, and no α leaves its client.
    """
    η = rows.predictors(θ)
    if own:
        η = η + intercept(family, rows, θ)
    μ = family.mean(η)
    weighted = rows.weights[:, None] * (rows.y - μ)
    v = rows.weights[:, None, None] * family.slope(μ)
    m, q = θ.shape
    hessian = np.empty((m, q, m, q))
    for a in range(m):
        for b in range(a, m):
            block = rows.z.T @ (v[:, a, b, None] * rows.z)
            hessian[a, :, b, :], hessian[b, :, a, :] = block, block.T
    flat = hessian.reshape(m * q, m * q)
    if own and len(rows.z):
        crossed = np.einsum("iab,ij->ajb", v, rows.z).reshape(m * q, m)
        flat = flat - crossed @ np.linalg.pinv(v.sum(axis=0), rcond=1e-12, hermitian=True) @ crossed.T
    found = {"loss": rows.weights @ family.loss(rows.y, η), "gradient": (weighted.T @ rows.z).ravel(), "hessian": flat}
    return {name: np.clip(np.asarray(array, np.float64), -_CAP, _CAP) for name, array in found.items()}


def intercept(family: Family, rows: Rows, θ: Array) -> Array:
    """Return the rows' best intercept α (m,) for θ (m, q), by damped Newton steps; within ±``EDGE``, if there is none.

    Normal errors have the mean of the residuals, which one step finds.
    """
    if not rows.weights.any():
        return np.zeros(len(θ))
    η, w = rows.predictors(θ), rows.weights
    edge = np.inf if family.dispersed else EDGE + float(np.abs(η).max())
    α = np.zeros(len(θ))

    def loss(α: Array) -> float:
        return float(w @ family.loss(rows.y, η + α))

    best = loss(α)
    for _ in range(_STEPS):
        μ = family.mean(η + α)
        gradient = w @ (rows.y - μ)
        curvature = np.einsum("i,iab->ab", w, family.slope(μ))
        step = np.linalg.pinv(curvature, rcond=1e-12, hermitian=True) @ gradient
        size = 1.0
        while (lower := loss(new := np.clip(α + size * step, -edge, edge))) > best and size > 1e-6:
            size /= 2
        moved = np.abs(new - α).max()
        if lower <= best:
            α, best = new, lower
        if moved < 1e-12 * (1 + np.abs(α).max()) or lower > best:
            break
    return α


def margins(name: str, rows: Rows, direction: Array, shift: Array) -> Array:
    """Return how far a step along ``direction`` (m, q) moves each row towards its own target, (n,).

    If no row moves away from it and some move towards it, the direction separates the targets: the likelihood rises
    along it for ever (Albert, Anderson 1984), and there is no finite estimate.

    Args:
        name: name of the family.
        rows: the rows.
        direction: of the parameters.
        shift: that of the rows' own intercept, (m,).
    """
    moved = rows.z @ direction.T + shift
    if name == "linear":
        return np.full(len(moved), -1.0)
    if name == "poisson":  # only rows of count 0 may move, and down
        return np.where(rows.y[:, 0] > 0, -np.abs(moved[:, 0]), -moved[:, 0])
    if moved.shape[1] == 1:
        return np.where(rows.y[:, 0] > 0, moved[:, 0], -moved[:, 0])
    every = np.column_stack([np.zeros(len(moved)), moved])
    classes = (rows.y @ np.arange(1, rows.y.shape[1] + 1)).astype(np.int64)
    own = every[np.arange(len(every)), classes]
    every[np.arange(len(every)), classes] = -np.inf
    result: Array = own - every.max(axis=1)
    return result


def aliased(gram: Array) -> NDArray[np.bool_]:
    """Return which columns are combinations of those before them, (q,), given their centred products (q, q).

    The products are swept column by column (Goodnight 1979), scaled to unit diagonal. A column without variance is one.
    """
    deviations = np.sqrt(np.maximum(np.diag(gram), 0.0))
    scale = np.where(deviations > 0, deviations, 1.0)
    rest = gram / np.outer(scale, scale)
    found = np.zeros(len(gram), bool)
    for j in range(len(gram)):
        if deviations[j] == 0 or rest[j, j] < ALIASED:
            found[j] = True
            continue
        rest = rest - np.outer(rest[:, j], rest[j]) / rest[j, j]
    return found
