"""ε by an accountant of our own: other code, on other principles, than the packages that runs rely on.

The privacy loss of one release is put on a grid and convolved with itself by the Fourier transform. Where a version of
Opacus or dp-accounting counted otherwise, ε of runs would change without a word.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from scipy.stats import norm

from florilegium.privacy.accounting import Release, total
from florilegium.privacy.dp_sgd import _WHOLE, _epsilon

CASES = [(1.0, 0.01, 1000), (0.8, 0.1, 50), (2.0, 0.2, 300), (5.0, 1.0, 30), (1.5, 0.5, 20)]
"""Noise multiplier z, sampling rate q, number of releases T."""
DELTA = 1e-5
Vector = NDArray[np.float64]


def _losses(z: float, q: float, *, removed: bool, step: float, half: int) -> tuple[Vector, float]:
    """Return the distribution of a release's privacy loss on the grid step·(−half … half − 1), and its mass beyond.

    The pair is N(0, z²) and (1 − q)·N(0, z²) + q·N(1, z²), drawn from the second if an example is ``removed``.
    """
    edges = step * (np.arange(-half, half + 1) - 0.5)
    mixed = removed
    # The loss log(1 − q + q·exp((2x − 1)/(2z²))) grows with x; that of the other direction is its negative.
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.expm1(edges if removed else -edges) / q + 1
        x = z * z * np.log(inner) + 0.5
    x = np.where(inner > 0, x, -np.inf)

    def below(points: Vector) -> Vector:
        plain = norm.cdf(points / z)
        return (1 - q) * plain + q * norm.cdf((points - 1) / z) if mixed else plain

    masses = np.diff(below(x)) if removed else -np.diff(below(x))
    return np.maximum(masses, 0.0), float(max(0.0, 1.0 - masses.sum()))


def _delta(z: float, q: float, times: int, epsilon: float) -> float:
    """Return δ(ε) of T releases, the larger one of both directions."""
    step, half = 1e-3 if times > 100 else 5e-4, 1 << 16
    worst = 0.0
    for removed in (True, False):
        masses, beyond = _losses(z, q, removed=removed, step=step, half=half)
        wrapped = np.fft.ifft(np.fft.fft(np.fft.ifftshift(masses)) ** times).real
        loss, composed = step * np.arange(-half, half), np.fft.fftshift(wrapped)
        over = loss > epsilon
        worst = max(worst, float((composed[over] * -np.expm1(epsilon - loss[over])).sum()) + times * beyond)
    return worst


def _exact(z: float, q: float, times: int) -> float:
    low, high = 0.0, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(z, q, times, middle) > DELTA else (low, middle)
    return high


def _renyi(z: float, q: float, times: int) -> float:
    """Return ε by Rényi divergences of whole orders: Mironov, Talwar, Zhang 2019, section 3.3; Balle et al. 2020."""
    best = math.inf
    for order in map(int, _WHOLE):
        k = np.arange(order + 1)
        binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        share = (order - k) * (math.log1p(-q) if q < 1 else 0.0) + k * math.log(q)
        share = np.where(k < order, share if q < 1 else -np.inf, share)
        divergence = logsumexp(binomial + share + k * (k - 1) / (2 * z * z)) / (order - 1)
        cost = times * divergence + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1)
        best = min(best, float(cost))
    return max(0.0, best)


@pytest.mark.parametrize(("z", "q", "times"), CASES)
def test_client_level_epsilon(z: float, q: float, times: int) -> None:
    """Privacy loss distributions of dp-accounting, which rounds up."""
    told, ours = total([Release("gaussian", z, times, q)], DELTA), _exact(z, q, times)
    assert told == pytest.approx(ours, rel=0.01)


@pytest.mark.parametrize(("z", "q", "times"), CASES)
def test_example_level_epsilon(z: float, q: float, times: int) -> None:
    """Opacus' Rényi divergences: those of whole orders are ours, and no ε lies below the exact one."""
    history = [(z, q, times)]
    assert _epsilon(history, DELTA, _WHOLE) == pytest.approx(_renyi(z, q, times), rel=1e-6)
    assert 0.995 * _exact(z, q, times) <= _epsilon(history, DELTA) <= _renyi(z, q, times) * (1 + 1e-9)
