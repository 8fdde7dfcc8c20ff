"""Coefficients with standard errors, tests and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def table(
    names: Sequence[str], estimates: NDArray[Any], covariance: NDArray[Any], confidence: float, freedom: float = np.inf
) -> list[dict[str, Any]]:
    """Return a line for each coefficient: name, coefficient, standard_error, statistic, p, low, high.

    Args:
        names: what the coefficients are called.
        estimates: (q,).
        covariance: (q, q).
        confidence: share of the intervals that hold the true coefficient, 0..1.
        freedom: degrees of freedom of Student's t; infinite: the normal distribution.
    """
    from scipy.stats import norm, t

    distribution = norm() if np.isinf(freedom) else t(freedom)
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = estimates / errors
    reach = distribution.ppf(0.5 + confidence / 2) * errors
    p = 2 * distribution.sf(np.abs(statistics))
    columns = (estimates, errors, statistics, p, estimates - reach, estimates + reach)
    words = ("coefficient", "standard_error", "statistic", "p", "low", "high")
    return [
        {"name": name} | {word: _number(column[i]) for word, column in zip(words, columns, strict=True)}
        for i, name in enumerate(names)
    ]


def _number(x: np.float64) -> float | None:
    """Return a number that JSON has, None for others."""
    return float(x) if np.isfinite(x) else None
