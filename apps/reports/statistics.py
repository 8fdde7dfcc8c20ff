"""Means over seeds, paired differences between methods, and their confidence intervals.

Two questions are kept apart. *Over clients*: would the difference hold for other clients, with these seeds? Each client
is compared with itself, and the differences of one seed's clients are a sample. *Over seeds*: would it hold for another
seed, which draws other clients, cohorts and initial models? The mean differences of the seeds are a sample.

Both intervals are Student's t for paired samples; over clients with Welch and Satterthwaite's degrees of freedom, since
the variances of the seeds may differ. A rank test is no alternative over seeds: with five seeds its smallest p-value is
0.06. The p-values of one table are adjusted by Holm's procedure, which holds for dependent tests, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

CONFIDENCE = 0.95
"""Level of all confidence intervals."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty.

    Attributes:
        mean: the mean; NaN if a value is NaN.
        error: standard error of the mean; NaN with fewer than two values.
        n: number of values.
        freedom: degrees of freedom of the standard error.
    """

    mean: float
    error: float
    n: int
    freedom: float

    @property
    def margin(self) -> float:
        """Half the width of the confidence interval; NaN if the error is unknown."""
        if not self.freedom > 0:
            return math.nan
        return float(student.ppf((1 + CONFIDENCE) / 2, self.freedom)) * self.error

    @property
    def p(self) -> float:
        """Two-sided p-value of the hypothesis that the mean is 0; NaN if the error is unknown."""
        if not self.freedom > 0 or math.isnan(self.error):
            return math.nan
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        return float(2 * student.sf(abs(self.mean) / self.error, self.freedom))


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values, and its standard error s/√n with n − 1 degrees of freedom."""
    sample, n = np.asarray(values, dtype=float), len(values)
    error = float(sample.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(float(sample.mean()), error, n, n - 1)


@dataclass(frozen=True)
class Difference:
    """The paired difference between two methods.

    Attributes:
        over_clients: mean over seeds of the clients' mean differences; the error is that of sampling clients.
        over_seeds: the same mean; the error is that of sampling seeds.
    """

    over_clients: Estimate
    over_seeds: Estimate


def difference(gains: Mapping[int, NDArray[np.float64]]) -> Difference:
    """Return the paired difference between two methods.

    Args:
        gains: by seed, the difference of each common client, (n,), n ≥ 1.

    Raises:
        ValueError: if there is no seed, or a seed has no client.
    """
    if not gains or not all(map(len, gains.values())):
        raise ValueError("a difference needs at least one client per seed")
    own = [estimate(list(values)) for values in gains.values()]
    clients = sum(part.n for part in own)
    variances = np.array([part.error**2 for part in own])  # NaN for a seed with a single client
    total = float(variances.sum())
    freedom = math.nan
    if not math.isnan(total):
        parts = variances**2 / np.array([part.freedom for part in own])
        freedom = total**2 / float(parts.sum()) if total > 0 else float(clients - len(own))
    over_seeds = estimate([part.mean for part in own])
    over_clients = Estimate(over_seeds.mean, math.sqrt(total) / len(own), clients, freedom)
    return Difference(over_clients, over_seeds)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests by Holm's procedure (1979); NaNs stay and are not counted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = largest
    return adjusted
