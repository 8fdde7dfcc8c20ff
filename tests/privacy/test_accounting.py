"""Accounting against closed forms, and against dp-accounting's distributions composed by hand."""

from __future__ import annotations

import math

import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism, from_laplace_mechanism
from opacus.accountants import PRVAccountant
from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import norm

from florilegium.privacy.accounting import Release, calibrate, multiplier, repeated_multiplier, total

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

    def test_at_delta_zero_laplace_releases_add_up_and_others_have_no_bound(self) -> None:
        """The library's accountants say infinite for both."""
        releases = [Release("laplace", 2.0, 3), Release("laplace", 0.5, 1, 0.25)]
        assert total(releases, 0.0) == pytest.approx(3 / 2 + math.log(1 + 0.25 * math.expm1(2)))
        assert total([*releases, Release("gaussian", 50.0)], 0.0) == math.inf
        assert total([Release("gaussian", 50.0)], 0.0) == math.inf
        assert total([Release("gaussian", 50.0, 0)], 0.0) == 0.0
        assert PLDAccountant().compose(LaplaceDpEvent(2.0), 3).get_epsilon(0.0) == math.inf

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

    @pytest.mark.parametrize(
        ("times", "rate", "epsilon"), [(1000, 0.01, 3.0), pytest.param(4000, 0.002, 0.3, marks=pytest.mark.long)]
    )
    def test_many_small_releases_spend_the_budget(self, times: int, rate: float, epsilon: float) -> None:
        def releases(scale: float) -> list[Release]:
            return [Release("gaussian", 1 / scale, times, rate)]

        spent = total(releases(calibrate(releases, epsilon, DELTA)), DELTA)
        assert epsilon * (1 - 2e-3) <= spent <= epsilon

    def test_composition_is_cheaper_than_the_sum_of_the_parts(self) -> None:
        def releases(scale: float) -> list[Release]:
            return [Release("gaussian", multiplier("gaussian", scale / 5, DELTA), 5)]

        assert calibrate(releases, 1.0, DELTA) > 1.0


TINY = (1e-12, 1e-13, 1e-15, 1e-20, 1e-30)


def _log_delta(epsilon: float, sigma: float) -> float:
    """ln δ(ε) of the Gaussian mechanism, also where δ is far below the precision of :func:`_gaussian_delta`."""
    first, second = log_ndtr(0.5 / sigma - epsilon * sigma), epsilon + log_ndtr(-0.5 / sigma - epsilon * sigma)
    return float(first + math.log(-math.expm1(second - first)))


def _sampled_log_delta(epsilon: float, sigma: float, rate: float) -> float:
    """ln δ(ε) of one Poisson-sampled Gaussian release, if a unit is removed (Balle et al. 2018, theorem 2)."""
    whole = epsilon - math.log(rate) + math.log1p(-(1 - rate) * math.exp(-epsilon))  # ln(1 + (exp(ε) − 1)/q)
    return math.log(rate) + _log_delta(whole, sigma)


def _by_opacus(z: float, rate: float, times: int, delta: float) -> float:
    """ε by Opacus' Rényi accountant, with large orders."""
    orders = [*(1 + x / 10 for x in range(1, 100)), *map(float, range(12, 64)), *map(float, range(64, 1001, 12))]
    return float(get_privacy_spent(
        orders=orders, rdp=compute_rdp(q=rate, noise_multiplier=z, steps=times, orders=orders), delta=delta
    )[0])  # fmt: skip


class TestSmallDelta:
    """Down to δ = 10⁻³⁰, far below what privacy loss distributions resolve."""

    @pytest.mark.parametrize("delta", [1e-5, *TINY])
    @pytest.mark.parametrize(("z", "times"), [(0.5, 1), (8.0, 1), (60.0, 100), (1000.0, 1_000_000)])
    def test_without_sampling_the_cost_is_exact(self, z: float, times: int, delta: float) -> None:
        σ = z / math.sqrt(times)
        exact = brentq(lambda ε: _log_delta(ε, σ) - math.log(delta), 1e-9, 1e3, xtol=1e-12)
        assert total([Release("gaussian", z, times)], delta) == pytest.approx(exact, rel=1e-6)

    @pytest.mark.parametrize("delta", TINY)
    def test_one_sampled_release_is_never_underestimated(self, delta: float) -> None:
        exact = brentq(lambda ε: _sampled_log_delta(ε, 1.5, 0.05) - math.log(delta), 1e-6, 1e3)
        assert exact <= total([Release("gaussian", 1.5, 1, 0.05)], delta) <= 1.15 * exact

    @pytest.mark.parametrize(("delta", "most"), [pytest.param(1e-13, 7.3, marks=pytest.mark.long), (1e-15, 8.15)])
    def test_noise_for_a_small_delta(self, delta: float, most: float) -> None:
        """With δ = 10⁻¹⁵ it was 16,380; Rényi divergences show that 8.11 suffices."""
        z = repeated_multiplier(1.0, delta, 100, 0.1)
        assert 6.5 < z <= most
        assert _by_opacus(z, 0.1, 100, delta) <= 1.05

    def test_laplace_releases_count_in_full(self) -> None:
        releases = [Release("laplace", 2.0, 3), Release("laplace", 0.001, 1, 0.5), Release("gaussian", 5.0)]
        pure = 3 / 2 + 1000 + math.log(0.5)
        gaussian = brentq(lambda ε: _log_delta(ε, 5.0) - math.log(1e-20), 1e-6, 1e3)
        assert pure + gaussian <= total(releases, 1e-20) <= pure + 1.15 * gaussian

    @pytest.mark.parametrize("delta", [0.3, 0.5, 0.9])
    def test_no_cost_is_below_zero(self, delta: float) -> None:
        for release in (Release("gaussian", 20.0), Release("gaussian", 20.0, 3, 0.1), Release("laplace", 20.0, 2)):
            assert total([release], delta) == 0.0

    @pytest.mark.long
    @pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-13, 1e-15, 1e-30])
    @pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
    @pytest.mark.parametrize("times", [1, 200])
    @pytest.mark.parametrize("z", [0.6, 1.2, 5.0])
    def test_grid(self, z: float, rate: float, times: int, delta: float) -> None:
        """ε is never above the Rényi bound of another library, and never below what is known to be spent.

        The bound is a minimum over orders: those of dp-accounting, some of which it skips, may give 0.5 % more.
        """
        found, bound = total([Release("gaussian", z, times, rate)], delta), _by_opacus(z, rate, times, delta)
        assert 0 <= found <= max(bound, 0) * (1 + 5e-3) + 1e-4
        if rate < 1:
            least = math.exp(min(0.0, _sampled_log_delta(1e-9, z, rate)))
            known = 0.0
            if least > delta:
                known = brentq(lambda ε: _sampled_log_delta(ε, z, rate) - math.log(delta), 1e-9, 1e3)
        else:
            σ = z / math.sqrt(times)
            most = 0.5 / σ**2 + math.sqrt(2 * math.log(1 / delta)) / σ  # zero-concentrated privacy
            known = brentq(lambda ε: _log_delta(ε, σ) - math.log(delta), 1e-9, most)
        assert found >= known * (1 - 1e-6)
        if delta >= 1e-8 and 0.05 < found < 50:
            accountant = PRVAccountant()
            accountant.history = [(z, rate, times)]
            assert found == pytest.approx(accountant.get_epsilon(delta), abs=0.02, rel=0.02)

    @pytest.mark.long
    @pytest.mark.parametrize("delta", [1e-5, 1e-10, *TINY])
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
    @pytest.mark.parametrize(("rate", "times"), [(1.0, 1), (1.0, 1000), (0.1, 100), (0.01, 5000)])
    def test_plans(self, rate: float, times: int, epsilon: float, delta: float) -> None:
        """A plan costs its ε, and no more noise than Rényi divergences of another library ask for."""
        z = repeated_multiplier(epsilon, delta, times, rate)
        slack = 2e-3 if delta > 1e-11 else 4e-2  # where the smaller one of two bounds changes, ε jumps
        assert epsilon * (1 - slack) <= total([Release("gaussian", z, times, rate)], delta) <= epsilon
        if _by_opacus(1.01 * z, rate, times, delta) < math.inf:
            assert _by_opacus(0.97 * z, rate, times, delta) > epsilon * 0.98
