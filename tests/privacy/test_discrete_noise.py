"""Noise on integers: its distribution, and what sums of it cost beside the central Gaussian mechanism."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from florilegium.privacy.accounting import Release, calibrate, total
from florilegium.privacy.noise import draw_discrete


@pytest.mark.parametrize("scale", [0.4, 3.0, 17.5])
def test_integers_are_those_of_the_discrete_gaussian(scale: float) -> None:
    drawn = draw_discrete(np.random.default_rng(1), scale, 200_000)
    edge = int(3 * scale) + 1
    support = np.arange(-40 * edge, 40 * edge + 1)
    mass = np.exp(-(support**2) / (2 * scale**2))
    mass /= mass.sum()
    values = np.clip(drawn, -edge, edge)
    found = np.array([(values == x).sum() for x in range(-edge, edge + 1)])
    expected = np.array([mass[np.clip(support, -edge, edge) == x].sum() for x in range(-edge, edge + 1)])
    assert chisquare(found, expected * len(drawn)).pvalue > 1e-4


def test_large_scales_have_their_deviation_and_every_last_bit() -> None:
    scale = 3e6
    drawn = draw_discrete(np.random.default_rng(2), scale, 100_000)
    assert drawn.std() == pytest.approx(scale, rel=0.01)
    assert abs(drawn.mean()) < 4 * scale / np.sqrt(100_000)
    assert chisquare(np.bincount(drawn % 16, minlength=16)).pvalue > 1e-4


@pytest.mark.parametrize(("multiplier", "times"), [(0.7, 1), (1.0, 10), (4.0, 100), (20.0, 30)])
def test_the_account_is_a_little_above_the_central_mechanisms(multiplier: float, times: int) -> None:
    central = total([Release("gaussian", multiplier, times)], 1e-5)
    assert central < total([Release("discrete", multiplier, times)], 1e-5) < 1.12 * central
    needed = 1 / calibrate(lambda scale: [Release("discrete", 1 / scale, times)], central, 1e-5)
    assert multiplier < needed < 1.12 * multiplier
