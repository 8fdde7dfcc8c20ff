"""What a secure exchange checks by itself: the norm of a sum, the width of its integers, noise on these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from florilegium.clients.core.secure_layout import Scale, Sums
from florilegium.clients.core.secure_wire import Terms
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.privacy.secure_sum.ring import RangeError, to_narrow
from florilegium.privacy.secure_sum.tally import TooFewError
from florilegium.strategies.layers.secure_exchange import PRECISION, SecureExchange, Task
from tests.support import settings

ENTRIES = 100
NAMES = [str(number) for number in range(5)]


def _exchange(arrays: Arrays, *, noise: float = 0.0, norm: float = 1.0, names: Sequence[str] = NAMES) -> SecureExchange:
    """Return an exchange whose terms for the clients are its messages, to be raised instead of sent."""

    def messages(nodes: Any, terms: Any) -> Any:
        raise AskedError(terms([names[0]]))

    examples = dict.fromkeys(names, 8.0)
    task = Task(names, {1: names}, "run", "0", examples, arrays, norm, {}, {}, noise, "", messages)
    keys: dict[str, Value] = {"weighting": "examples", "secure_aggregation": True, "max_update_norm": norm}
    return SecureExchange(settings(**keys), None, task, deployed=False)  # type: ignore[arg-type]


class AskedError(Exception):
    """The terms that clients would be sent."""


def _terms(exchange: SecureExchange, clients: int) -> Terms:
    with pytest.raises(AskedError) as caught:
        exchange._masked(dict.fromkeys(range(clients), b""))
    found: Terms = caught.value.args[0]
    return found


def _sums(norm: float, weight: float, clients: int = 5) -> Sums:
    return Sums({"w": np.full(ENTRIES, norm / math.sqrt(ENTRIES))}, clients, weight, weight, {})


@pytest.mark.parametrize("weight", [5.0, 20.0])
def test_a_sum_is_as_long_as_the_examples_allow_that_are_in_it(weight: float) -> None:
    """Up to 40 examples were agreed; each counts for norm 2 at most."""
    exchange, scale = _exchange({}), Scale(5, 40.0, uniform=False, norm=2.0, range=1e6, coarse=True)
    exchange._check(_sums(2 * weight, weight), 5, scale)
    with pytest.raises(TooFewError, match="more than was agreed"):
        exchange._check(_sums(2 * weight * (1 + 3 * PRECISION), weight), 5, scale)


def test_clients_that_all_weigh_1_have_a_norm_each() -> None:
    exchange, scale = _exchange({}), Scale(5, 40.0, uniform=True, norm=2.0, range=1e6, coarse=True)
    sums = _sums(10.0, 5.0)
    exchange._check(Sums(sums.arrays, 5, 5, 30.0, {}), 5, scale)
    with pytest.raises(TooFewError):
        exchange._check(Sums(_sums(10.1, 5.0).arrays, 5, 5, 30.0, {}), 5, scale)


@pytest.mark.parametrize(("above", "fits"), [(6.0, True), (13.0, False)])
def test_noise_may_make_a_sum_longer(above: float, fits: bool) -> None:
    """The norm of d normal numbers is at most √d + t but with probability exp(−t²/2): 10⁻⁸ for 6, 10⁻³⁷ for 13."""
    scale = Scale(5, 40.0, uniform=False, norm=2.0, range=1e6, coarse=True, noise=0.5)
    longest = 2 * 20 * (1 + PRECISION) + 0.5 * math.sqrt(5) * (math.sqrt(ENTRIES) + above)
    if fits:
        _exchange({})._check(_sums(longest, 20.0), 5, scale)
        return
    with pytest.raises(TooFewError):
        _exchange({})._check(_sums(longest, 20.0), 5, scale)


@pytest.mark.parametrize(("share", "coarse"), [(0.9, True), (1.1, False)])
def test_sums_that_32_bits_would_round_too_much_have_64(share: float, coarse: bool) -> None:
    """Rounding n vectors of d entries is off by n·√d/2 units at most, of 2³¹ (less n + 8) for all norms together."""
    n = 5
    entries = int((share * PRECISION * (2**31 - 8 - n) * 2 / n) ** 2)
    arrays: Arrays = {"w": np.broadcast_to(np.float32(0), (entries,))}  # of no memory
    exchange = _exchange(arrays)
    assert _terms(exchange, n).coarse is coarse
    assert exchange.error == (pytest.approx(share * PRECISION, rel=1e-6) if coarse else 0.0)


@pytest.mark.parametrize(("units", "fits"), [(15.9, False), (16.1, True)])
def test_noise_by_devices_is_many_units(units: float, fits: bool) -> None:
    """The unit is that of 40 examples' norm 1, and of room for twelve deviations of the sum's noise."""
    # noise = units·unit, unit = (40 + 12·√5·noise) / (2³¹ − 13)
    room = 2**31 - 8 - 5
    noise = units * 40 / (room - units * 12 * math.sqrt(5))
    exchange = _exchange({"w": np.zeros(ENTRIES, np.float32)}, noise=noise)
    if fits:
        assert _terms(exchange, 5).noise == noise
        return
    with pytest.raises(RunError, match=r"privacy\.noise-at: .* or the noise too small"):
        exchange._masked(dict.fromkeys(range(5), b""))


def test_it_is_the_norm_of_all_entries_that_is_bounded() -> None:
    assert len(to_narrow(np.array([0.6, 0.8]), 1.0, 1e-6)) == 2
    with pytest.raises(RangeError, match="larger than the secure sum was made for"):
        to_narrow(np.array([0.8, 0.8]), 1.0, 1e-6)
