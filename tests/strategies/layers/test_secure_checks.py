"""What a secure exchange checks by itself: the norm of a sum, the width of its integers, noise on these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from florilegium.clients.core.secure_layout import Layout, Scale, Sums
from florilegium.clients.core.secure_wire import Terms
from florilegium.common.blocks import BLOCK
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.privacy.secure_sum.ring import (
    PRECISION,
    RangeError,
    at_random,
    check_norm,
    fine_unit,
    random_error,
    signed,
    to_narrow,
)
from florilegium.privacy.secure_sum.tally import TooFewError
from florilegium.strategies.layers.secure_exchange import SecureExchange, Task
from tests.support import settings

ENTRIES = 100
NAMES = [str(number) for number in range(5)]


def _exchange(
    arrays: Arrays, *, noise: float = 0.0, norm: float = 1.0, names: Sequence[str] = NAMES, exact: bool = False
) -> SecureExchange:
    """Return an exchange whose terms for the clients are its messages, to be raised instead of sent."""

    def messages(nodes: Any, terms: Any) -> Any:
        raise AskedError(terms([names[0]]))

    examples = dict.fromkeys(names, 8.0)
    task = Task(names, {1: names}, "run", "0", examples, arrays, norm, exact, {}, {}, noise, None, "", messages)
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


@pytest.mark.parametrize(
    ("share", "exact", "coarse", "chance"),
    [(0.9, False, True, False), (0.9, True, True, False), (1.1, False, True, True), (1.1, True, False, False)],
)
def test_sums_that_32_bits_would_round_too_much_are_rounded_at_random(
    share: float, exact: bool, coarse: bool, chance: bool
) -> None:
    """Rounding n vectors of d entries is off by n·√d/2 units at most, of 2³¹ (less n + 8) for all norms together.

    At random, the errors of n vectors have variance n·d/4 at most. Where privacy depends on norms, sums have 64 bits.
    """
    n = 5
    room = 2**31 - 8 - n
    entries = int((share * PRECISION * room * 2 / n) ** 2)
    arrays: Arrays = {"w": np.broadcast_to(np.float32(0), (entries,))}  # of no memory
    exchange = _exchange(arrays, exact=exact)
    assert _terms(exchange, n).coarse is coarse
    error = 1.5 * math.sqrt(n * entries) / 2 / room if chance else share * PRECISION
    assert exchange.error == (pytest.approx(error, rel=1e-6) if coarse else 0.0)


def test_a_thousand_parties_with_eleven_million_entries_need_32_bits() -> None:
    assert at_random(11_000_000, 1000)
    assert random_error(11_000_000, 1000) < PRECISION / 2
    assert not at_random(120_000, 1000)


def test_rounding_at_random_is_right_on_average_and_within_its_bound() -> None:
    """All parties have the same vector, so that rounding to the nearest is off in one direction: by 0.4·n units."""
    parties, entries, unit, rng = 50, 4000, 0.5, np.random.default_rng(1)
    values = np.full(entries, 7.4 * unit) * np.where(np.arange(entries) % 2, 1, -1)
    total = sum(signed(to_narrow(values, unit, rng)) for _ in range(parties))
    error = np.asarray(total) - parties * values / unit
    assert abs(error.mean()) < 6 * math.sqrt(0.24 * parties / entries)  # variance 0.4·0.6 of each
    assert np.linalg.norm(error) < 1.5 * math.sqrt(parties * entries) / 2 < 0.4 * parties * math.sqrt(entries)
    assert error.std() == pytest.approx(math.sqrt(0.24 * parties), rel=0.1)
    whole = np.array([-3.0, 0.0, 5.0])
    assert signed(to_narrow(whole, 1.0, rng)).tolist() == whole.tolist()
    assert signed(to_narrow(values[:2], unit)).tolist() == [-7, 7]


def test_a_party_rounds_at_random_by_named_draws_and_never_what_gets_noise() -> None:
    """As many entries as five parties need for it, with bounds that make the unit about 1."""
    room = 2**31 - 8 - 5
    entries = int((1.1 * PRECISION * room * 2 / 5) ** 2)
    few = Scale(5, 40.0, uniform=True, norm=room / 5, range=1.0, coarse=True)
    layout, arrays = Layout((("w", (10,)),), ()), {"w": np.full(10, 2.5)}
    assert few.encode(layout, arrays, 1, 1, {}, 8).narrow.tolist() == [2] * 10  # to the nearest even
    many = Scale(5_000_000, 40.0, uniform=True, norm=0.25, range=1.0, coarse=True)
    assert at_random(entries, 5)
    assert at_random(10, many.parties)
    exact = 120.5
    arrays = {"w": np.full(10, exact * many.unit())}
    found = [
        many.encode(layout, arrays, 1, 1, {}, 8, lambda seed=seed: np.random.default_rng(seed)).narrow.tolist()
        for seed in (1, 1, 2)
    ]
    assert found[0] == found[1] != found[2]
    assert {*found[0], *found[2]} <= {math.floor(exact), math.ceil(exact)}
    noisy = Scale(5_000_000, 40.0, uniform=True, norm=0.25, range=1.0, coarse=True, noise=0.1)
    with pytest.raises(RangeError, match="rounded at random"):
        noisy.encode(layout, arrays, 1, 1, {}, 8)


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


@pytest.mark.parametrize(
    ("parties", "coarse"), [(5, True), (2_000_000, True), (5, False)], ids=["nearest", "random", "wide"]
)
def test_what_is_encoded_in_blocks_is_what_is_encoded_at_once(parties: int, coarse: bool) -> None:
    rng, sizes = np.random.default_rng(1), {"a": BLOCK + 3, "b": 5, "c": 2 * BLOCK - 1, "none": 0}
    update = {name: rng.standard_normal((size, 1)) for name, size in sizes.items()}
    layout, scale = Layout.of(update, {}), Scale(parties, 100.0 * parties, False, 1e3, 1.0, coarse)
    found = scale.encode(layout, update, 3.0, 5.0, {}, 100.0, lambda: np.random.default_rng(7))
    values = np.concatenate([*update.values()])[:, 0]
    if coarse:
        scaled, draws = values / scale.unit(), np.random.default_rng(7)
        rounded = np.floor(scaled + draws.random(len(values), np.float32)) if parties > 5 else np.rint(scaled)
        assert found.narrow.view("<i4").tolist() == rounded.tolist()
        assert at_random(len(values), parties) == (parties > 5)
    else:
        assert found.wide[4:].view("<i8").tolist() == np.rint(values / fine_unit(parties * 100 * 1e3)).tolist()
    back = scale.decode(layout, found)
    assert (back.clients, back.weight, back.examples) == (1, 3, 5)
    integers = found.narrow.view("<i4") if coarse else found.wide[4:].view("<i8")
    unit = scale.unit() if coarse else fine_unit(parties * 100 * 1e3)
    assert np.concatenate([*back.arrays.values()])[:, 0].tolist() == (integers * unit).tolist()
    assert shapes_of(back.arrays) == shapes_of(update)


def test_it_is_the_norm_of_all_entries_that_is_bounded() -> None:
    check_norm([np.array([0.6]), np.array([[0.8]])], 1.0)
    with pytest.raises(RangeError, match="larger than the secure sum was made for"):
        check_norm([np.array([0.8]), np.array([[0.8]])], 1.0)
    long = np.full(4 * BLOCK, 1.0)  # of several blocks, each of norm 256
    check_norm([long], 512.0)
    with pytest.raises(RangeError):
        check_norm([long], 511.9)
