"""Numbers as integers of a ring: fixed-point, so fine that a sum cannot overflow and its error is known."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from florilegium.privacy.secure_sum.masks import NARROW, WIDE


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


def to_wide(values: NDArray[np.float64], limits: NDArray[np.float64], units: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return ``values``, none of which may exceed its limit, as 64-bit integers in ``units``, rounded.

    Raises:
        RangeError: if a number is larger than its limit, or is NaN.
    """
    if not (np.abs(values) <= limits).all():
        raise RangeError("a number is larger than the secure sum was made for")
    found: NDArray[np.uint64] = np.rint(values / units).astype("<i8").view(WIDE)
    return found


def to_narrow(values: NDArray[np.float64], limit: float, unit: float) -> NDArray[np.uint32]:
    """Return ``values`` as 32-bit integers in ``unit``, rounded; the Euclidean norm of all must not exceed ``limit``.

    Raises:
        RangeError: if it does, or is NaN.
    """
    if not float(np.linalg.norm(values)) <= limit * (1 + 1e-9):
        raise RangeError("an update is larger than the secure sum was made for")
    found: NDArray[np.uint32] = np.rint(values / unit).astype("<i4").view(NARROW)
    return found


def signed(integers: NDArray[np.unsignedinteger]) -> NDArray[np.float64]:
    """Return integers of the ring as the signed numbers that they stand for."""
    return integers.view(f"<i{integers.itemsize}").astype(np.float64)


def coarse_error(entries: int, parties: int) -> float:
    """Return a bound of the error of a 32-bit sum of vectors, as a share of the norms that they may have together.

    Every entry of every party is off by half a unit at most: n·√d/2 units, of about 2^31 that the norms make.
    """
    return parties * math.sqrt(entries) / 2 / _room(parties)


def _room(parties: int) -> int:
    """Return the largest sum of 32-bit numbers before rounding, less some for errors of floating point."""
    return 2**31 - 8 - parties
