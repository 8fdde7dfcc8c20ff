"""Mixtures of Dirichlet-multinomials against scipy's pmf, an EM written anew, and what theory promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import dirichlet_multinomial

from florilegium.partitions.dirichlet_multinomial import (
    SMALLEST_ALPHA,
    Mixture,
    check_counts,
    initial,
    log_joint,
    log_likelihood,
    moments,
    size_bins,
    start_anew,
    statistics,
    update,
)
from tests.em import em


def _mixture(k: int = 3, c: int = 4, largest: int = 12, seed: int = 1) -> Mixture:
    rng = np.random.default_rng(seed)
    edges = np.arange(1, largest + 2)
    return Mixture(rng.dirichlet(np.ones(k)), rng.dirichlet(np.ones(largest), size=k), rng.gamma(2, size=(k, c)), edges)


class TestLikelihood:
    def test_components_are_scipys_dirichlet_multinomials(self) -> None:
        m = _mixture()
        counts = m.sample(40, np.random.default_rng(2))
        expected = [
            [
                np.log(m.tau[k] * m.pi[k, c.sum() - 1]) + dirichlet_multinomial.logpmf(c, m.alpha[k], c.sum())
                for k in range(3)
            ]
            for c in counts
        ]
        np.testing.assert_allclose(log_joint(counts, m), expected, rtol=0, atol=1e-10)
        np.testing.assert_allclose(log_likelihood(counts, m), np.log(np.exp(expected).sum(axis=1)), atol=1e-10)

    def test_it_is_a_distribution(self) -> None:
        # All histograms of at most 4 samples over 2 categories.
        m = _mixture(k=2, c=2, largest=4)
        everything = np.array([[a, m_ - a] for m_ in range(1, 5) for a in range(m_ + 1)])
        assert np.exp(log_likelihood(everything, m)).sum() == pytest.approx(1, abs=1e-12)
        bins = Mixture(m.tau, np.array([[0.3, 0.7], [0.6, 0.4]]), m.alpha, np.array([1, 2, 5]))
        assert np.exp(log_likelihood(everything, bins)).sum() == pytest.approx(1, abs=1e-12)

    def test_sizes_without_overflow(self) -> None:
        m = Mixture(np.ones(1), np.ones((1, 1)), np.full((1, 3), 1e-6), np.array([1, 10**7]))
        assert np.isfinite(log_likelihood(np.array([[10**6, 0, 3]]), m)).all()


class TestEM:
    def test_a_step_is_that_of_an_em_written_anew(self) -> None:
        m = _mixture()
        counts = _mixture(seed=5).sample(60, np.random.default_rng(3))
        for _ in range(3):
            mine, theirs = update(m, statistics(counts, m)), em(counts, m)
            for name in ("tau", "alpha"):
                np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=0, atol=1e-10)
            np.testing.assert_allclose(mine.pi, theirs.pi, rtol=0, atol=1e-10)
            m = mine

    def test_sums_over_parts_are_the_sums_over_all(self) -> None:
        m, counts = _mixture(), _mixture(seed=5).sample(30, np.random.default_rng(3))
        parts = [statistics(counts[i : i + 1], m) for i in range(30)]
        for name, whole in statistics(counts, m).items():
            np.testing.assert_allclose(sum(part[name] for part in parts), whole, rtol=1e-12, atol=1e-12)

    @given(
        st.lists(st.lists(st.integers(0, 6), min_size=3, max_size=3).filter(any), min_size=1, max_size=12),
        st.integers(0, 2**16),
    )
    def test_the_likelihood_never_falls(self, histograms: list[list[int]], seed: int) -> None:
        counts = np.array(histograms)
        m, last = _mixture(k=2, c=3, largest=18, seed=seed), -np.inf
        for _ in range(15):
            sums = statistics(counts, m)
            assert np.isfinite(sums["likelihood"]).all()
            assert sums["likelihood"][0] >= last - 1e-7
            m, last = update(m, sums), sums["likelihood"][0]
        assert m.tau.sum() == pytest.approx(1)
        np.testing.assert_allclose(m.pi.sum(axis=1), 1)
        assert (m.alpha >= SMALLEST_ALPHA).all()

    @given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 3))
    def test_one_category_leaves_nothing_to_learn(self, sizes: list[int], k: int) -> None:
        counts = np.array(sizes)[:, None]
        edges = np.arange(1, 11)
        m = initial(moments(counts, np.zeros(len(sizes), np.int64), k, edges), edges)
        for _ in range(3):
            m = update(m, statistics(counts, m))
        assert np.isfinite(m.alpha).all()
        assert np.isfinite(log_likelihood(counts, m)).all()

    def test_one_component_finds_alpha_within_its_standard_error(self) -> None:
        α, n, size = np.array([0.5, 2.0, 1.0, 4.0]), 4000, 30
        truth = Mixture(np.ones(1), np.ones((1, 1)), α[None], np.array([size, size + 1]))
        counts = truth.sample(n, np.random.default_rng(7))
        m = initial(moments(counts, np.zeros(n, np.int64), 1, truth.edges), truth.edges)
        for _ in range(500):
            m = update(m, statistics(counts, m))

        def likelihood(a: np.ndarray) -> float:
            return float(dirichlet_multinomial.logpmf(counts, a, size).sum())

        # The observed information, by differences of scipy's log-likelihood around the estimate.
        found, h = m.alpha[0], 1e-3
        information, step = np.zeros((4, 4)), np.eye(4) * h
        for i in range(4):
            for j in range(4):
                corners = [
                    likelihood(found + a * step[i] + b * step[j]) for a, b in [(1, 1), (1, -1), (-1, 1), (-1, -1)]
                ]
                information[i, j] = -(corners[0] - corners[1] - corners[2] + corners[3]) / (4 * h * h)
        errors = np.sqrt(np.diag(np.linalg.inv(information)))
        assert (np.abs(found - α) < 4 * errors).all()
        assert (errors < 0.1 * α).all()  # so that this says something

    def test_an_empty_component_keeps_its_parameters(self) -> None:
        m = _mixture()
        sums = statistics(m.sample(20, np.random.default_rng(1)), m)
        for name in ("weights", "sizes", "numerator", "denominator"):
            sums[name][1] = 0
        new = update(m, sums)
        np.testing.assert_array_equal(new.alpha[1], m.alpha[1])
        np.testing.assert_array_equal(new.pi[1], m.pi[1])
        assert new.tau[1] == 0
        assert np.isfinite(log_likelihood(m.sample(20, np.random.default_rng(1)), new)).all()

    def test_noise_leaves_a_mixture(self) -> None:
        m, rng = _mixture(), np.random.default_rng(4)
        for _ in range(20):
            sums = {
                name: array + 50 * rng.normal(size=array.shape)
                for name, array in statistics(m.sample(5, rng), m).items()
            }
            m = update(m, sums)
            assert m.tau.sum() == pytest.approx(1)
            assert (m.tau >= 0).all()
            np.testing.assert_allclose(m.pi.sum(axis=1), 1)
            assert (m.alpha > 0).all()


class TestStart:
    def test_moments_of_a_dirichlet_give_its_parameters(self) -> None:
        α = np.array([0.5, 1.5, 3.0])
        total = α.sum()
        first, second = α / total, α * (1 + α) / (total * (1 + total))  # A.1 and A.2
        sums = {"sizes": np.array([[8.0]]), "first": 8 * first[None], "second": 8 * second[None]}
        np.testing.assert_allclose(initial(sums, np.array([5, 6])).alpha[0], α, rtol=1e-9)

    def test_equal_histograms_have_no_variance_and_start_with_c(self) -> None:
        counts = np.array([[2, 4, 6]] * 5)
        edges = np.arange(1, 14)
        m = initial(moments(counts, np.zeros(5, np.int64), 1, edges), edges)
        np.testing.assert_allclose(m.alpha[0], [0.5, 1.0, 1.5])

    def test_one_degenerate_category_does_not_matter(self) -> None:
        # Nobody has the first category: (3.9) would be 0/0.
        truth = Mixture(np.ones(1), np.ones((1, 1)), np.array([[1e-9, 1.0, 2.0, 3.0]]), np.array([50, 51]))
        counts = truth.sample(3000, np.random.default_rng(1))
        m = initial(moments(counts, np.zeros(3000, np.int64), 1, truth.edges), truth.edges)
        np.testing.assert_allclose(m.alpha[0, 1:], [1, 2, 3], rtol=0.2)

    def test_a_component_nobody_chose_starts_from_all(self) -> None:
        counts = _mixture().sample(30, np.random.default_rng(1))
        edges = _mixture().edges
        all_of_them = initial(moments(counts, np.zeros(30, np.int64), 1, edges), edges)
        two = initial(moments(counts, np.zeros(30, np.int64), 2, edges), edges)
        np.testing.assert_allclose(two.alpha[1], all_of_them.alpha[0])

    def test_a_new_start_takes_half_of_the_largest(self) -> None:
        m = Mixture(np.array([0.7, 0.3, 0.0]), _mixture().pi, _mixture().alpha, _mixture().edges)
        new = start_anew(m, 2, np.random.default_rng(1))
        np.testing.assert_allclose(new.tau, [0.35, 0.3, 0.35])
        assert not np.allclose(new.alpha[2], m.alpha[0])
        np.testing.assert_array_equal(new.alpha[:2], m.alpha[:2])


class TestSampling:
    def test_means_are_those_of_the_components(self) -> None:
        m = _mixture()
        counts = m.sample(20000, np.random.default_rng(1))
        sizes = (np.arange(1, 13) * m.pi).sum(axis=1)
        means = m.alpha / m.alpha.sum(axis=1, keepdims=True)
        expected = (m.tau * sizes) @ means
        np.testing.assert_allclose(counts.mean(axis=0), expected, atol=5 * counts.std(axis=0).max() / np.sqrt(20000))

    def test_sizes_in_a_bin_are_equally_likely(self) -> None:
        m = Mixture(np.ones(1), np.ones((1, 1)), np.ones((1, 2)), np.array([3, 6]))
        sizes = m.sample(6000, np.random.default_rng(1)).sum(axis=1)
        np.testing.assert_allclose(np.bincount(sizes, minlength=6)[3:], 2000, atol=5 * np.sqrt(6000 * 2 / 9))


class TestMistakes:
    @pytest.mark.parametrize(
        ("counts", "said"),
        [
            ([[1, -2]], r"-2 is no count; counts are whole numbers ≥ 0"),
            ([[1, 0.5]], r"0\.5 is no count"),
            ([[1, np.nan]], "nan is no count"),
            ([[1, 2], [0, 0]], "a histogram has no count above 0"),
            ([1, 2], r"a table \(n, C\)"),
        ],
    )
    def test_counts_are_whole_numbers(self, counts: list[object], said: str) -> None:
        with pytest.raises(ValueError, match=said):
            check_counts(np.array(counts))

    def test_a_size_outside_the_bins_is_named(self) -> None:
        np.testing.assert_array_equal(size_bins(np.array([1, 4, 5, 9]), np.array([1, 5, 10])), [0, 0, 1, 1])
        with pytest.raises(ValueError, match="a size of 10 lies outside the bins, which hold 1 to 9"):
            size_bins(np.array([3, 10]), np.array([1, 5, 10]))
