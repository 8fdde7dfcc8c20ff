"""Units that explain how a client's numbers differ: those of made values in both, and nothing for others."""

from __future__ import annotations

import numpy as np
import pytest

from florilegium.strategies.statistics.units import FACTORS, other_unit

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", [*FACTORS])
@pytest.mark.parametrize("upwards", [True, False])
def test_a_factor_is_found_in_both_directions(name: str, upwards: bool) -> None:
    """With other rows, whose mean and deviation differ by chance."""
    x, y = RNG.gamma(9, 1, 200), RNG.gamma(9, 1, 300)
    scaled = x * FACTORS[name] if upwards else x / FACTORS[name]
    found = other_unit((scaled.mean(), scaled.std()), (y.mean(), y.std()))
    assert FACTORS[found] == pytest.approx(FACTORS[name], rel=0.25)  # near factors may explain it as well


@pytest.mark.parametrize("upwards", [True, False])
def test_temperatures(upwards: bool) -> None:
    celsius, others = RNG.normal(37, 0.6, 200), RNG.normal(37, 0.6, 300)
    pair = [((1.8 * celsius + 32).mean(), (1.8 * celsius).std()), (others.mean(), others.std())]
    assert other_unit(*(pair if upwards else pair[::-1])) == "°F and °C"


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ((50, 10), (55, 12)),
        ((50, 10), (5, 10)),
        ((50, 0), (5, 0)),
        ((-50, 10), (5, 1)),
        ((50, 5), (20, 5)),
        ((0, 1), (0, 1)),
    ],
)
def test_other_differences_have_no_unit(own: tuple[float, float], others: tuple[float, float]) -> None:
    assert other_unit(own, others) == ""
