"""Survival from sums over rows: curves, log-rank tests, and the Cox model's partial likelihood.

All are made of numbers at risk and of deaths at each time of a common grid. ``Risk`` holds the sums of the Cox model at
each time t: over rows at risk Σ r, Σ r z, Σ r zzᵀ with r = exp(zᵀβ), and the same over the rows that die at t. They are
sums over clients, so that risk sets that reach over clients need no row to leave one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_EDGE = 60.0
"""Linear predictors beyond this number count as it."""


def rounded(times: Array, width: float) -> Array:
    """Return times rounded up to multiples of ``width``; 0: as they are."""
    return np.ceil(times / width - 1e-9) * width if width else times


def counts(times: Array, events: Array, groups: NDArray[np.int64], grid: Array, number: int) -> dict[str, Array]:
    """Return ``at_risk`` and ``deaths``, (groups, T): rows whose times are at least, and deaths at, each of the grid.

    Args:
        times, events: of n rows; events are 0 or 1.
        groups: the group of each row, 0 to ``number`` − 1.
        grid: increasing times, (T,), all times of deaths among them.
        number: number of groups.
    """
    at_risk, deaths = np.zeros((number, len(grid))), np.zeros((number, len(grid)))
    for g in range(number):
        own = groups == g
        at_risk[g] = (times[own, None] >= grid).sum(axis=0)
        deaths[g] = ((times[own, None] == grid) & (events[own, None] > 0)).sum(axis=0)
    return {"at_risk": at_risk, "deaths": deaths}


def curve(at_risk: Array, deaths: Array, grid: Array) -> dict[str, Any]:
    """Return the curves of Kaplan and Meier, with Greenwood's error, and of Nelson and Aalen, at times of deaths."""
    some = deaths > 0
    n, d = at_risk[some], deaths[some]
    survival = np.cumprod(1 - d / n)
    with np.errstate(divide="ignore"):
        variance = np.cumsum(np.where(n > d, d / (n * np.maximum(n - d, 1)), np.inf))
    with np.errstate(invalid="ignore"):
        errors = np.where(survival > 0, survival * np.sqrt(variance), 0.0)
    below = np.flatnonzero(survival <= 0.5)
    times = grid[some]
    return {
        "times": times.tolist(), "at_risk": n.tolist(), "deaths": d.tolist(), "survival": survival.tolist(),
        "standard_error": errors.tolist(), "cumulative_hazard": np.cumsum(d / n).tolist(),
        "median": float(times[below[0]]) if len(below) else None,
    }  # fmt: skip


def log_rank(at_risk: Array, deaths: Array) -> dict[str, float]:
    """Return the log-rank test of G groups, (G, T) each: statistic, degrees of freedom, p (Mantel 1966)."""
    from scipy.stats import chi2

    n, d = at_risk.sum(axis=0), deaths.sum(axis=0)
    some = (d > 0) & (n > 1)
    n, d, shares = n[some], d[some], at_risk[:, some] / n[some]
    difference = (deaths[:, some] - d * shares).sum(axis=1)
    factor = d * (n - d) / (n - 1)
    variance = np.diag((factor * shares).sum(axis=1)) - np.einsum("t,at,bt->ab", factor, shares, shares)
    statistic = float(difference @ np.linalg.pinv(variance, rcond=1e-10, hermitian=True) @ difference)
    freedom = int((at_risk.sum(axis=1) > 0).sum()) - 1
    return {"statistic": statistic, "degrees_of_freedom": freedom, "p": float(chi2.sf(statistic, max(freedom, 1)))}


def risk(z: Array, times: Array, events: Array, grid: Array, β: Array) -> dict[str, Array]:
    """Return the sums of the Cox model at each time of the grid; ``r…`` over rows at risk, ``d…`` over deaths.

    Args:
        z: inputs, (n, q).
        times, events: of the rows.
        grid: increasing times, (T,), all times of deaths among them.
        β: coefficients, (q,).
    """
    η = np.clip(z @ β, -_EDGE, _EDGE)
    r, T, q = np.exp(η), len(grid), z.shape[1]
    last = np.searchsorted(grid, times, side="right") - 1  # at risk at all times up to this one
    dies = events > 0
    found: dict[str, Array] = {"events": np.zeros(T), "total": z[dies].sum(axis=0), "score": np.asarray(η[dies].sum())}
    np.add.at(found["events"], last[dies], 1.0)
    for name, rows in (("r", last >= 0), ("d", dies)):
        zero, one, two = np.zeros(T), np.zeros((T, q)), np.zeros((T, q, q))
        np.add.at(zero, last[rows], r[rows])
        np.add.at(one, last[rows], r[rows, None] * z[rows])
        for place in np.unique(last[rows]):
            own = rows & (last == place)
            two[place] = z[own].T @ (r[own, None] * z[own])
        for order, sums in enumerate((zero, one, two)):
            found[f"{name}{order}"] = np.cumsum(sums[::-1], axis=0)[::-1] if name == "r" else sums
    return found


def cox(sums: Mapping[str, Array], ties: str) -> dict[str, Array]:
    """Return ``loss`` (), minus the log partial likelihood, ``gradient`` (q,) of −loss and ``hessian`` (q, q) of it.

    Args:
        sums: those of :func:`risk`, of all rows whose risk sets are common.
        ties: "breslow" or "efron": how deaths at one time are counted.
    """
    q = len(sums["total"])
    loss, gradient, hessian = -float(sums["score"]), sums["total"].copy(), np.zeros((q, q))
    for t in np.flatnonzero(np.rint(sums["events"]) > 0):
        d = int(np.rint(sums["events"][t]))
        for number in range(d):
            share = number / d if ties == "efron" else 0.0
            zero, one, two = (sums[f"r{order}"][t] - share * sums[f"d{order}"][t] for order in range(3))
            mean = one / zero
            loss += float(np.log(zero))
            gradient -= mean
            hessian += two / zero - np.outer(mean, mean)
    return {"loss": np.asarray(loss), "gradient": gradient, "hessian": hessian}
