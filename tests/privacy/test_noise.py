"""Noise and clipping: distributions by scipy's tests, shares that add up, bounds that hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, kstest, laplace, norm

from florilegium.privacy.clipping import clip_rows, clipping_factor
from florilegium.privacy.guard import Guard
from florilegium.privacy.noise import draw, secret_generator

N = 20_000


@pytest.mark.parametrize("shares", [1, 7])
@pytest.mark.parametrize(("kind", "expected"), [("gaussian", norm(scale=3.0)), ("laplace", laplace(scale=3.0))])
def test_all_shares_together_are_the_stated_noise(kind: str, expected: object, shares: int) -> None:
    rng = np.random.default_rng(1)
    total = sum(draw(rng, kind, 3.0, (N,), shares) for _ in range(shares))
    assert kstest(total, expected.cdf).pvalue > 0.01


@pytest.mark.parametrize(("kind", "variance"), [("gaussian", 9.0), ("laplace", 18.0)])
def test_variance_of_a_share(kind: str, variance: float) -> None:
    noise = draw(np.random.default_rng(2), kind, 3.0, (N,), 10)
    # Gamma shares have heavier tails than chi-square allows for: a looser bound.
    assert noise.var() == pytest.approx(variance / 10, rel=0.15)


def test_gaussian_variance_within_chi_square() -> None:
    noise = draw(np.random.default_rng(3), "gaussian", 2.0, (N,))
    low, high = chi2.ppf([0.001, 0.999], N)
    assert low < (noise**2).sum() / 4.0 < high


def test_secret_noise_cannot_be_repeated() -> None:
    assert secret_generator().normal() != secret_generator().normal()


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20), st.floats(0.01, 100), st.sampled_from([1, 2]))
def test_clipped_norms_are_bounded_and_directions_kept(values: list[float], bound: float, order: int) -> None:
    array = np.array(values)
    clipped = clipping_factor(array, bound, order) * array
    size = np.linalg.norm(array, order)
    assert np.linalg.norm(clipped, order) <= bound * (1 + 1e-9)
    np.testing.assert_allclose(clipped, array * min(1.0, bound / size) if size else array)


def test_matrices_are_clipped_as_a_whole() -> None:
    fives = np.full((3, 4), 5.0)
    assert clipping_factor(fives, 1.0) == pytest.approx(1 / np.sqrt(12 * 25))
    assert clipping_factor(fives, 1.0, 1) == pytest.approx(1 / 60)


def test_rows_are_clipped_one_by_one() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(clip_rows(rows, 1.0), [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])


def test_a_guard_uses_the_norm_of_its_noise() -> None:
    ones = np.ones(4)
    assert Guard("gaussian", 1.0, 0.0).factor(ones) == 0.5  # L2 norm 2
    assert Guard("laplace", 1.0, 0.0).factor(ones) == 0.25  # L1 norm 4
    assert Guard("laplace", float("inf"), 0.0).factor(ones) == 1.0
    assert not Guard("gaussian", 1.0, 0.0).noise(np.random.default_rng(1), (3,)).any()
