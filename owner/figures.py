"""The numbers of a reply: rounded, so that each tells few bits; those of every reply are computed here."""

from __future__ import annotations

import math

from florilegium.clients.core.wire import LARGEST

_SMALLEST = 1e-15
"""Figures nearer to 0 are sent as 0."""


def rounded(value: float, digits: int) -> float:
    """Return ``value`` with ``digits`` significant digits; NaN if it is not finite or too large to be sent."""
    if not math.isfinite(value) or abs(value) > LARGEST:
        return math.nan
    return 0.0 if abs(value) < _SMALLEST else float(f"{value:.{digits - 1}e}")


def bits(digits: int) -> float:
    """Return the bits that a rounded figure can tell at most: log₂ of how many values :func:`rounded` returns."""
    exponents = round(math.log10(LARGEST) - math.log10(_SMALLEST))
    mantissas = 9 * 10 ** (digits - 1)
    return math.log2(2 * (mantissas * exponents + 1) + 2)  # both signs, LARGEST itself; 0 and NaN
