"""Means over seeds, paired differences between methods, and their confidence intervals.

Two questions are kept apart. *Over clients*: would the difference hold for other clients, with these seeds? Each client
is compared with itself, and the differences of one seed's clients are a sample. *Over seeds*: would it hold for another
seed, which draws cohorts, initial models and mostly clients anew? The mean differences of the seeds are a sample.

Both intervals are Student's t for paired samples; over clients with Welch and Satterthwaite's degrees of freedom, since
the variances of the seeds may differ. A rank test is no alternative over seeds: with five seeds its smallest p-value is
0.06. The p-values of one table are adjusted by Holm's procedure, which holds for dependent tests, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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
        over_clients: mean of the clients' differences; the error is that of sampling clients.
        over_seeds: mean of the seeds' mean differences; the error is that of sampling seeds.
    """

    over_clients: Estimate
    over_seeds: Estimate


def difference(gains: Mapping[int, Mapping[str, float]]) -> Difference:
    """Return the paired difference between two methods.

    Over clients, each seed's clients are a sample of their own. Where clients return in several seeds, they are no
    new ones there: each client's mean over seeds then counts once.

    Args:
        gains: by seed, the difference of each common client, at least one. Equal names in two seeds are one client.

    Raises:
        ValueError: if there is no seed, or a seed has no client.
    """
    if not gains or not all(map(len, gains.values())):
        raise ValueError("a difference needs at least one client per seed")
    over_seeds = estimate([float(np.mean(list(own.values()))) for own in gains.values()])
    by_client: dict[str, list[float]] = {}
    for own in gains.values():
        for client, value in own.items():
            by_client.setdefault(client, []).append(value)
    if len(by_client) < sum(map(len, gains.values())):
        return Difference(estimate([float(np.mean(values)) for values in by_client.values()]), over_seeds)
    return Difference(_stratified([list(own.values()) for own in gains.values()]), over_seeds)


def _stratified(samples: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of the samples' means, with Welch and Satterthwaite's degrees of freedom."""
    own = [estimate(values) for values in samples]
    variances = np.array([part.error**2 for part in own])  # NaN for a sample of one
    total, n = float(variances.sum()), sum(part.n for part in own)
    freedom = math.nan
    if not math.isnan(total):
        parts = variances**2 / np.array([part.freedom for part in own])
        freedom = total**2 / float(parts.sum()) if total > 0 else float(n - len(own))
    return Estimate(float(np.mean([part.mean for part in own])), math.sqrt(total) / len(own), n, freedom)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests by Holm's procedure (1979); NaNs stay and are not counted."""
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = largest
    return adjusted
