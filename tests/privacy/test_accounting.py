"""Accounting against closed forms, and against dp-accounting's distributions composed by hand."""

from __future__ import annotations

import math

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, from_laplace_mechanism
from scipy.stats import norm

from florilegium.privacy.accounting import Release, calibrate, multiplier, total

DELTA = 1e-6


def _gaussian_delta(epsilon: float, sigma: float) -> float:
    """δ(ε) of the Gaussian mechanism of sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    return norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)


class TestMultiplier:
    @pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 8.0])
    def test_analytic_gaussian_spends_exactly_delta(self, epsilon: float) -> None:
        σ = multiplier("gaussian", epsilon, DELTA)
        assert _gaussian_delta(epsilon, σ) == pytest.approx(DELTA, rel=1e-2)

    def test_classical_gaussian_is_larger_below_one(self) -> None:
        σ = multiplier("gaussian", 0.5, DELTA, "classical")
        assert σ == pytest.approx(math.sqrt(2 * math.log(1.25e6)) / 0.5)
        assert σ > multiplier("gaussian", 0.5, DELTA)

    def test_classical_gaussian_is_not_private_at_large_epsilon(self) -> None:
        # Why it is a setting and not the default.
        assert _gaussian_delta(10.0, multiplier("gaussian", 10.0, DELTA, "classical")) > DELTA

    def test_laplace(self) -> None:
        assert multiplier("laplace", 0.25, DELTA) == 4.0


class TestTotal:
    def test_nothing_costs_nothing(self) -> None:
        assert total([], DELTA) == 0.0

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
    def test_one_gaussian(self, epsilon: float) -> None:
        spent = total([Release("gaussian", multiplier("gaussian", epsilon, DELTA))], DELTA)
        assert spent == pytest.approx(epsilon, rel=2e-3)

    @pytest.mark.parametrize("b", [0.5, 2.0, 20.0])
    def test_one_laplace(self, b: float) -> None:
        # δ(ε) = 1 − exp((ε − 1/b)/2) for 0 ≤ ε ≤ 1/b.
        assert total([Release("laplace", b)], 1e-3) == pytest.approx(1 / b + 2 * math.log(1 - 1e-3), abs=2e-4)

    def test_distributions_composed_by_hand_agree(self) -> None:
        releases = [
            Release("gaussian", 7.0),
            Release("laplace", 5.0),
            Release("gaussian", 9.0, 3),
            Release("laplace", 8, 2),
        ]
        composed = from_gaussian_mechanism(7.0).compose(from_laplace_mechanism(5.0))
        composed = composed.compose(from_gaussian_mechanism(9.0).self_compose(3))
        composed = composed.compose(from_laplace_mechanism(8.0).self_compose(2))
        assert total(releases, DELTA) == pytest.approx(composed.get_epsilon_for_delta(DELTA), rel=1e-3)

    def test_the_librarys_accountant_agrees(self) -> None:
        releases = [
            Release("gaussian", 1.5, 10, 0.1), Release("gaussian", 9.0, 3), Release("laplace", 6.0, 2),
            Release("laplace", 3.0, 2, 0.5), Release("gaussian", 1.0, 0), Release("gaussian", 1.0, 9, 0.0),
        ]  # fmt: skip
        accountant = PLDAccountant()
        events = {"gaussian": GaussianDpEvent, "laplace": LaplaceDpEvent}
        for release in releases[:-2]:
            sampled = PoissonSampledDpEvent(release.rate, events[release.kind](release.multiplier))
            accountant.compose(sampled, release.times)
        assert total(releases, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-4)

    def test_order_does_not_matter(self) -> None:
        releases = [Release("gaussian", 7.0), Release("laplace", 5.0)]
        assert total(releases, DELTA) == total(releases[::-1], DELTA)

    def test_several_gaussians_are_one_with_the_square_root_of_their_number(self) -> None:
        assert total([Release("gaussian", 10.0, 4)], DELTA) == pytest.approx(
            total([Release("gaussian", 5.0)], DELTA), rel=1e-3
        )


class TestCalibrate:
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
    def test_a_budget_is_spent_and_not_overspent(self, epsilon: float) -> None:
        def releases(scale: float) -> list[Release]:
            return [
                Release("gaussian", multiplier("gaussian", 0.6 * scale, DELTA)),
                Release("laplace", multiplier("laplace", 0.2 * scale, DELTA)),
                Release("laplace", multiplier("laplace", 0.2 * scale, DELTA)),
            ]

        spent = total(releases(calibrate(releases, epsilon, DELTA)), DELTA)
        assert epsilon * (1 - 2e-3) <= spent <= epsilon

    @pytest.mark.parametrize(("times", "rate", "epsilon"), [(1000, 0.01, 3.0), (4000, 0.002, 0.3)])
    def test_many_small_releases_spend_the_budget(self, times: int, rate: float, epsilon: float) -> None:
        def releases(scale: float) -> list[Release]:
            return [Release("gaussian", 1 / scale, times, rate)]

        spent = total(releases(calibrate(releases, epsilon, DELTA)), DELTA)
        assert epsilon * (1 - 2e-3) <= spent <= epsilon

    def test_composition_is_cheaper_than_the_sum_of_the_parts(self) -> None:
        def releases(scale: float) -> list[Release]:
            return [Release("gaussian", multiplier("gaussian", scale / 5, DELTA), 5)]

        assert calibrate(releases, 1.0, DELTA) > 1.0
