"""Discrete-time Cox models: a row that is at risk in a public interval dies there with a probability of its own.

The hazard of a row with inputs z in interval k is σ(α_k + zᵀβ) (Cox 1972, section 3; Andreux et al. 2020). The
likelihood is that of a logistic regression on a row for each interval at risk. It is a sum over rows, without risk
sets, so that loss, gradient and Hessian are sums over clients. That of α is diagonal. As intervals shrink,
β becomes that of the Cox model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_EDGE = 60.0
"""Linear predictors beyond this number count as it."""


def first_alpha(at_risk: Array, deaths: Array) -> Array:
    """Return the best α (T,) for β = 0, log-odds of dying, from numbers at risk and of deaths; finite if all die."""
    odds: Array = np.log(deaths / np.maximum(at_risk - deaths, 0.5))
    return odds


def periods(z: Array, times: Array, events: Array, grid: Array, α: Array, β: Array) -> dict[str, Array]:
    """Return sums over rows and the intervals in which they are at risk.

    Args:
        z: inputs, (n, q).
        times, events: of the rows; times are ends of intervals.
        grid: ends of the intervals, (T,).
        α: log-odds of the hazard at z = 0, (T,).
        β: coefficients, (q,).

    Returns:
        ``loss`` (), minus the log-likelihood; ``gradient`` (q,) and ``alpha_gradient`` (T,) of −loss; and of the loss's
        Hessian ``hessian`` (q, q), ``cross`` (T, q) and ``diagonal`` (T,).
    """
    T, q = len(grid), z.shape[1]
    found = {
        "loss": np.zeros(()), "gradient": np.zeros(q), "alpha_gradient": np.zeros(T), "hessian": np.zeros((q, q)),
        "cross": np.zeros((T, q)), "diagonal": np.zeros(T),
    }  # fmt: skip
    score, curvature = np.zeros(len(z)), np.zeros(len(z))
    scores = z @ β
    for t in range(T):
        rows = times >= grid[t]
        η = np.clip(α[t] + scores[rows], -_EDGE, _EDGE)
        dies = ((times[rows] == grid[t]) & (events[rows] > 0)).astype(np.float64)
        p = 1 / (1 + np.exp(-η))
        w = p * (1 - p)
        found["loss"] = found["loss"] + (np.logaddexp(0.0, η) - dies * η).sum()
        found["alpha_gradient"][t], found["diagonal"][t] = (dies - p).sum(), w.sum()
        found["cross"][t] = w @ z[rows]
        score[rows] += dies - p
        curvature[rows] += w
    return found | {"gradient": score @ z, "hessian": z.T @ (curvature[:, None] * z)}


def without_alpha(sums: Mapping[str, Array]) -> dict[str, Array]:
    """Return the sums with gradient and Hessian of β alone: what is left of a Newton step when α has taken its own."""
    share = sums["cross"] / sums["diagonal"][:, None]
    return {
        **sums, "gradient": sums["gradient"] - share.T @ sums["alpha_gradient"],
        "hessian": sums["hessian"] - share.T @ sums["cross"],
    }  # fmt: skip


def alpha_step(sums: Mapping[str, Array], step: Array) -> Array:
    """Return the step of α (T,) that goes with a step of β (q,)."""
    result: Array = (sums["alpha_gradient"] - sums["cross"] @ step) / sums["diagonal"]
    return result
