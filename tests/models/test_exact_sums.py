"""Sums of numbers of very different size, against ``math.fsum``."""

from __future__ import annotations

import math

import numpy as np
import pytest

from florilegium.models.statistics import exact


@pytest.mark.parametrize("clients", [1, 7, 100])
def test_large_beside_small(clients: int) -> None:
    """10⁹ beside 10⁻⁹, and terms that cancel: the sum is the rounded true one, however rows are divided and ordered."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.normal(1e9, 1e9, 3000), rng.normal(1e-9, 1e-9, 3000), rng.normal(0, 1, 3000)])
    x = np.concatenate([x, -x[:3000] + 1e-9, [1e15, -1e15]])
    rng.shuffle(x)
    total = np.sum([exact.parts(own[:, None]) for own in np.array_split(x, clients)], axis=0)
    expected = math.fsum(x)
    assert abs(float(exact.value(total)[0]) - expected) <= 12_002 * exact.FINE + 2 * math.ulp(expected)
    assert np.array_equal(total[0] % 1, [0.0])
    assert abs(float(np.sum(x)) - expected) > 1e-8  # what is at stake


def test_many_rows_are_carried() -> None:
    """Of 2²⁰ rows of a half each, the second parts alone would leave the range in which they are exact."""
    x = np.full((1 << 20, 1), 0.4999999999)
    found = exact.parts(x)
    assert float(exact.value(found)[0]) == pytest.approx(math.fsum(x[:, 0]), rel=1e-15)
    assert abs(found[1, 0]) <= 0.5


def test_no_rows() -> None:
    assert np.array_equal(exact.value(exact.parts(np.zeros((0, 3)))), np.zeros(3))
