"""Means, paired differences and their intervals, beside SciPy's tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind, ttest_rel

from florilegium.apps.reports.statistics import difference, estimate, holm


def _named(*samples: np.ndarray) -> dict[int, dict[str, float]]:
    """Return samples by seed, in which no client occurs twice."""
    return {seed: {f"{seed}-{i}": float(v) for i, v in enumerate(own)} for seed, own in enumerate(samples)}


def _gains(seed: int, n: int, spread: float = 1.0) -> np.ndarray:
    return 0.3 + spread * np.random.default_rng(seed).normal(size=n)


def test_a_mean_has_the_interval_and_p_value_of_students_test() -> None:
    values = list(_gains(1, 7))
    found, test = estimate(values), ttest_1samp(values, 0.0)
    assert found.p == pytest.approx(test.pvalue)
    low, high = test.confidence_interval(0.95)
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((low, high))


def test_a_single_value_has_no_error() -> None:
    found = estimate([0.5])
    assert found.mean == 0.5
    assert all(map(math.isnan, (found.error, found.margin, found.p)))


@pytest.mark.parametrize(("value", "p"), [(0.0, 1.0), (0.25, 0.0)])
def test_values_without_spread(value: float, p: float) -> None:
    assert (estimate([value] * 3).p, estimate([value] * 3).margin) == (p, 0.0)


def test_with_one_seed_clients_are_a_paired_test_and_seeds_are_none() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.uniform(size=(2, 30))
    found = difference(_named(b - a))
    low, high = ttest_rel(b, a).confidence_interval(0.95)
    over = found.over_clients
    assert (over.mean - over.margin, over.mean + over.margin) == pytest.approx((low, high))
    assert math.isnan(found.over_seeds.margin)


def test_over_seeds_the_seeds_means_are_the_sample() -> None:
    gains = [_gains(seed, 5 + seed) for seed in (1, 2, 3)]
    test = ttest_1samp([own.mean() for own in gains], 0.0)
    found = difference(_named(*gains)).over_seeds
    assert found.p == pytest.approx(test.pvalue)
    assert found.margin == pytest.approx(np.ptp(test.confidence_interval(0.95)) / 2)


def test_clients_of_two_seeds_are_pooled_as_in_welchs_test() -> None:
    """Half of Welch's interval for g₁ − (−g₂) is that for (g₁ + g₂)/2."""
    first, second = _gains(1, 9), _gains(2, 21, spread=4.0)
    found = difference(_named(first, second)).over_clients
    low, high = ttest_ind(first, -second, equal_var=False).confidence_interval(0.95)
    assert (found.mean - found.margin, found.mean + found.margin) == pytest.approx((low / 2, high / 2))
    assert found.n == 30


def test_intervals_cover_as_often_as_they_say() -> None:
    """Seeds shift all their clients: the interval over seeds covers the true gain, that over clients does not."""
    rng, covered = np.random.default_rng(3), np.zeros(2)
    for _ in range(1000):
        shifts = 0.3 + rng.normal(size=(4, 1))
        found = difference(_named(*(shifts + rng.normal(size=(4, 10)))))
        for level, over in enumerate((found.over_seeds, found.over_clients)):
            covered[level] += abs(over.mean - 0.3) < over.margin
    assert covered[0] == pytest.approx(950, abs=25)
    assert covered[1] < 600


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9, 0.001]) == pytest.approx([1.0, 1.0, 0.003])
    assert holm([math.nan, 0.02])[1] == 0.02  # what was not tested does not count
    assert holm([]) == []


def test_a_seed_without_clients_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        difference({1: {}})
