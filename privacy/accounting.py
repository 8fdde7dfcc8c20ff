"""Privacy accounting: the total ε of several releases, and the noise needed to stay within a budget.

Composition and calibration use the dp-accounting library: it composes the privacy loss distributions of the
mechanisms that are actually used. Gaussian releases without sampling have a closed form. For a very small δ, which
distributions on a grid cannot resolve, Rényi divergences are composed, too; both are upper bounds, and the smaller one
counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Literal

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_gaussian_mechanism,
    from_laplace_mechanism,
)
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, RdpAccountant, compute_epsilon
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

from florilegium.privacy.noise import Kind

Mechanism = Kind | Literal["discrete"]
Formula = Literal["analytic", "classical"]

_INTERVAL = 1e-4
"""Grid spacing of dp-accounting's privacy loss distributions; this is the library's default."""
_TOLERANCE = 1e-3
_DENSE_ORDERS = 1 + np.logspace(-3, 4, 400)
"""Rényi orders for concentrated privacy."""
_MEANINGLESS = 1000.0
"""Above about this ε, privacy loss distributions do not fit floating point, and the guarantee means nothing."""

_FINE = 1e-12
"""δ below which the tails that privacy loss distributions cut off, about 10⁻¹⁵ per composition, begin to count."""
_ORDERS = (*DEFAULT_RDP_ORDERS, *(float(round(64 * 1.08**k)) for k in range(36)), 1536.0, 2048.0, 4096.0)
"""Orders of Rényi divergences: those of the library, sparse above 63, and more for a small δ with a small ε."""


@dataclass(frozen=True)
class Release:
    """One or more releases of a sum with noise.

    Attributes:
        kind: type of noise: Gaussian, with the sensitivity in L2 norm; Laplace, with the sensitivity in L1 norm; or
            "discrete": a sum of discrete Gaussians (:func:`concentrated`), at rate 1 and together with no others.
        multiplier: noise multiplier > 0, the noise's scale ÷ the sensitivity: σ/Δ₂ or b/Δ₁.
        times: number of releases.
        rate: probability that a unit takes part, drawn anew for each release (Poisson sampling); 1: all units always
            take part.
    """

    kind: Mechanism
    multiplier: float
    times: int = 1
    rate: float = 1.0


def multiplier(kind: Kind, epsilon: float, delta: float, formula: Formula = "analytic") -> float:
    """Return the noise multiplier (noise scale ÷ sensitivity) that makes one release (ε, δ)-private.

    Args:
        kind: type of noise; Laplace noise makes the release (ε, 0)-private.
        epsilon, delta: ε > 0, 0 < δ < 1.
        formula: for Gaussian noise: "analytic", the smallest sufficient multiplier (Balle and Wang 2018); "classical",
            √(2 ln(1.25/δ))/ε (Dwork and Roth 2014, theorem A.1), which holds for ε < 1 only.
    """
    if kind == "laplace":
        return 1 / epsilon
    if formula == "classical":
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    found = GaussianPrivacyLoss.from_privacy_guarantee(DifferentialPrivacyParameters(epsilon, delta))
    return float(found.standard_deviation)


def total(releases: Sequence[Release], delta: float) -> float:
    """Return the total ε at δ of all ``releases``, for data sets that differ by adding or removing one unit.

    At δ = 0 it is the sum of the ε of Laplace releases, infinite with any other: distributions on a grid, which lose
    their tails, would say infinite for both.

    If ε is about 1,000 or more, an upper bound is returned: zero-concentrated privacy (Bun and Steinke 2016,
    proposition 1.3) without amplification by sampling, plus the sum of the ε of Laplace releases.
    """
    return _sorted_total(releases, delta, _INTERVAL)


def _sorted_total(releases: Sequence[Release], delta: float, interval: float) -> float:
    return _total(tuple(sorted(releases, key=lambda r: (r.kind, r.multiplier, r.times, r.rate))), delta, interval)


@lru_cache(maxsize=4096)
def _total(releases: tuple[Release, ...], delta: float, interval: float) -> float:
    releases = tuple(release for release in releases if release.times * release.rate)
    if not delta:
        return sum(map(_pure, releases)) if all(release.kind == "laplace" for release in releases) else math.inf
    if any(release.kind == "discrete" for release in releases):
        return concentrated(releases, delta)
    if all(release.kind == "gaussian" and release.rate == 1 for release in releases):
        return _gaussian_total(sum(r.times / r.multiplier**2 for r in releases), delta)
    bound = _rényi_total(releases, delta) if delta < _FINE else math.inf
    return max(0.0, min(bound, _composed(releases, delta, interval)))


def _gaussian_total(precision: float, delta: float) -> float:
    """Return ε at δ of Gaussian releases to which all units contribute (Balle and Wang 2018, theorem 8).

    Together they are one release with noise multiplier 1/√precision.

    Args:
        precision: Σ 1/z² over the releases.
        delta: δ.
    """
    μ = math.sqrt(precision)
    if math.erf(μ / math.sqrt(8)) <= delta:  # δ(0)
        return 0.0

    def excess(ε: float) -> float:
        """Return ln δ(ε) − ln δ, for δ(ε) = Φ(μ/2 − ε/μ) − exp(ε)·Φ(−μ/2 − ε/μ)."""
        first, second = log_ndtr(μ / 2 - ε / μ), ε + log_ndtr(-μ / 2 - ε / μ)
        return float(first + math.log(max(-math.expm1(min(second - first, 0.0)), 1e-300)) - math.log(delta))

    ρ = precision / 2
    above = ρ + 2 * math.sqrt(ρ * math.log(1 / delta))  # zero-concentrated privacy, an upper bound
    if ρ > _MEANINGLESS:
        return above
    return float(brentq(excess, 0.0, above, xtol=1e-12 * above, rtol=1e-10)) * (1 + 1e-9)


def _rényi_total(releases: Sequence[Release], delta: float) -> float:
    """Return an upper bound on ε at δ: Gaussian releases by Rényi divergences, plus the ε of Laplace ones."""
    divergences = np.zeros(len(_ORDERS))
    for release in releases:
        if release.kind == "gaussian":
            divergences += release.times * _rényi(release.multiplier, release.rate)
    pure = sum(_pure(release) for release in releases if release.kind == "laplace")
    return float(compute_epsilon(_ORDERS, divergences, delta)[0]) + pure


def _pure(release: Release) -> float:
    """Return ε at δ = 0 of Laplace releases: 1/b for scale b; sampling with rate q makes it ln(1 + q(exp(ε) − 1))."""
    ε, q = 1 / release.multiplier, release.rate
    return release.times * (ε + math.log(q + (1 - q) * math.exp(-ε)))


@lru_cache(maxsize=256)
def _rényi(multiplier: float, rate: float) -> NDArray[np.float64]:
    """Return the Rényi divergence of one Gaussian release at each of ``_ORDERS``."""
    accountant = RdpAccountant(_ORDERS)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)))
    divergences: NDArray[np.float64] = accountant.rdp
    return divergences


def _composed(releases: Sequence[Release], delta: float, interval: float) -> float:
    """Return ε at δ from privacy loss distributions."""
    # With a fine grid of the privacy loss, a large ε takes minutes. On any grid the result is rounded up.
    rough = sum(r.rate * r.times * (1 / r.multiplier + 0.5 / r.multiplier**2) for r in releases)
    if rough > _MEANINGLESS:
        ρ = sum(r.times / (2 * r.multiplier**2) for r in releases if r.kind == "gaussian")
        pure = sum(r.times / r.multiplier for r in releases if r.kind == "laplace")
        return ρ + 2 * math.sqrt(ρ * math.log(1 / delta)) + pure
    losses = [_loss(release, interval * max(1.0, rough / 10)) for release in releases]
    return float(reduce(PrivacyLossDistribution.compose, losses).get_epsilon_for_delta(delta))


def concentrated(releases: Sequence[Release], delta: float) -> float:
    """Return the total ε at δ of sums to which many add discrete Gaussian noise of at least 16 units each.

    Such a sum is ½/z²-concentrated private (Kairouz, Liu, Steinke, *The Distributed Discrete Gaussian Mechanism*, ICML
    2021, theorem 1): the term by which it differs from a discrete Gaussian is below 10⁻¹⁰⁰⁰ with so much noise. Rényi
    divergences are those of the Gaussian mechanism; its privacy loss distribution, which gives a smaller ε, is not.
    """
    ρ = sum(release.times / (2 * release.multiplier**2) for release in releases)
    if not ρ:
        return 0.0
    return float(compute_epsilon(_DENSE_ORDERS, ρ * _DENSE_ORDERS, delta)[0])


def _loss(release: Release, interval: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of a release."""
    assert release.kind != "discrete"
    return _single(release.kind, release.multiplier, release.rate, interval).self_compose(release.times)


@lru_cache(maxsize=8)
def _single(kind: Kind, multiplier: float, rate: float, interval: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one release; making it takes longer than composing it."""
    make = {"gaussian": from_gaussian_mechanism, "laplace": from_laplace_mechanism}[kind]
    loss: PrivacyLossDistribution = make(multiplier, value_discretization_interval=interval, sampling_prob=rate)
    return loss


def repeated_multiplier(
    epsilon: float, delta: float, times: int, rate: float = 1.0, kind: Literal["gaussian", "discrete"] = "gaussian"
) -> float:
    """Return the noise multiplier z with which ``times`` releases cost ε at δ in total, never more.

    They cost 0.1 % less at most; with a δ below 10⁻¹¹, where bounds have jumps, 4 %.

    Args:
        epsilon, delta: the budget, ε > 0, 0 < δ < 1.
        times: number of releases, ≥ 1.
        rate, kind: sampling rate and kind of noise, as in :class:`Release`.
    """
    return 1 / calibrate(lambda scale: [Release(kind, 1 / scale, times, rate)], epsilon, delta)


def calibrate(releases: Callable[[float], Sequence[Release]], epsilon: float, delta: float) -> float:
    """Return the scale s for which ``releases(s)`` cost ε in total, never more.

    They cost 0.1 % less at most; with a δ below 10⁻¹¹, where bounds have jumps, 4 %.

    Args:
        releases: returns the releases when every share of the budget is multiplied by s, so their cost rises with s.
        epsilon, delta: the budget, ε > 0.
    """

    def over(scale: float, interval: float = _INTERVAL) -> float:
        return _sorted_total(releases(scale), delta, interval) / epsilon - 1

    # A coarse grid, ten times as fast, costs little more than the tolerance; what it finds is tested on the fine grid.
    scale = _root(lambda scale: over(scale, 10 * _INTERVAL), epsilon, 2.0)
    if not -_TOLERANCE < over(scale) <= 0:
        scale = _root(over, scale, 1 + _TOLERANCE)
    return scale


def _root(over: Callable[[float], float], start: float, step: float) -> float:
    """Return the largest scale, to within a quarter of the tolerance, at which the rising function ``over`` is ≤ 0.

    Args:
        over: the function.
        start: where the search begins.
        step: factor by which it goes on until the sign changes.
    """
    low, high = start, start
    while over(low) > 0:
        low /= step
    while over(high) < 0:
        high *= step
    scale = float(brentq(over, low, high, xtol=_TOLERANCE / 4 * low, rtol=_TOLERANCE / 4)) if low < high else low
    while over(scale) > 0:
        scale *= 1 - _TOLERANCE / 4
    return scale
