"""Numbers as integers of a ring: fixed-point, so fine that a sum cannot overflow and its error is known."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from florilegium.common.blocks import entries
from florilegium.privacy.secure_sum.masks import NARROW, WIDE

PRECISION = 1e-4
"""The largest error of a sum of updates that rounding may make, as a share of the bound of their norms together."""


class RangeError(ValueError):
    """A number that is larger than what was agreed, so that a sum could overflow."""


def fine_unit(total: float) -> float:
    """Return the unit of 64-bit numbers whose absolute values add up to ``total`` at most.

    It is a power of two, so that sums of whole numbers are exact where it is 1 or less.
    """
    return float(2.0 ** math.ceil(math.log2(total / 2**61)))


def coarse_unit(total: float, parties: int) -> float:
    """Return the unit of 32-bit numbers whose absolute values add up to ``total`` at most; rounding adds ½ a party."""
    return total / _room(parties)


def to_wide(
    values: NDArray[np.float64], limits: NDArray[np.float64] | float, units: NDArray[np.float64] | float
) -> NDArray[np.uint64]:
    """Return ``values``, none of which may exceed its limit, as 64-bit integers in ``units``, rounded.

    Args:
        values: (m,).
        limits, units: of each, (m,), or of all.

    Raises:
        RangeError: if a number is larger than its limit, or is NaN.
    """
    if not (np.abs(values) <= limits).all():
        raise RangeError("a number is larger than the secure sum was made for")
    found: NDArray[np.uint64] = np.rint(values / units).astype("<i8").view(WIDE)
    return found


def check_norm(arrays: Iterable[NDArray[np.float64]], limit: float) -> None:
    """Raise :class:`RangeError` if the Euclidean norm of the entries of all arrays exceeds ``limit``, or is NaN."""
    if not math.sqrt(sum(float(np.dot(block, block)) for block in entries(arrays))) <= limit * (1 + 1e-9):
        raise RangeError("an update is larger than the secure sum was made for")


def to_narrow(values: NDArray[np.float64], unit: float, draws: np.random.Generator | None = None) -> NDArray[np.uint32]:
    """Return ``values``, the norm of which :func:`check_norm` has accepted, as 32-bit integers in ``unit``, rounded.

    Args:
        values: (d,).
        unit: what 1 stands for.
        draws: rounds up or down at random, so that the mean is the value; None: to the nearest integer.
    """
    scaled = values / unit
    if draws is not None:
        scaled = np.floor(scaled + draws.random(len(scaled), np.float32), out=scaled)
    else:
        scaled = np.rint(scaled, out=scaled)
    found: NDArray[np.uint32] = scaled.astype("<i4").view(NARROW)
    return found


def signed(integers: NDArray[np.unsignedinteger]) -> NDArray[np.float64]:
    """Return integers of the ring as the signed numbers that they stand for."""
    return integers.view(f"<i{integers.itemsize}").astype(np.float64)


def at_random(entries: int, parties: int) -> bool:
    """Return whether 32-bit integers are rounded at random, since the nearest ones might be off by too much together.

    To the nearest, all parties may be off in the same direction; at random, their errors are independent.
    """
    return coarse_error(entries, parties) > PRECISION


def random_error(entries: int, parties: int) -> float:
    """Return a bound as of :func:`coarse_error` for numbers that are rounded up or down at random.

    The error of an entry has mean 0 and variance n/4 at most, so that the norm of all is √(n·d)/2 units or less. It is
    below 1.5 times that but for a probability of exp(−0.2·d), since the errors are sums of bounded draws.
    """
    return 1.5 * math.sqrt(parties * entries) / 2 / _room(parties)


def coarse_error(entries: int, parties: int) -> float:
    """Return a bound of the error of a 32-bit sum of vectors, as a share of the norms that they may have together.

    Every entry of every party is off by half a unit at most: n·√d/2 units, of about 2^31 that the norms make.
    """
    return parties * math.sqrt(entries) / 2 / _room(parties)


def _room(parties: int) -> int:
    """Return the largest sum of 32-bit numbers before rounding, less some for errors of floating point."""
    return 2**31 - 8 - parties
