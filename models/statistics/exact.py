"""Sums over rows and clients without rounding, whatever their order and however clients are packed into nodes.

A number is split into three multiples of fixed units, 1, 2⁻³⁴ and 2⁻⁶⁸. Sums of up to 2¹⁹ multiples of one unit are
exact in double precision, so that adding clients' parts is, too, and numbers of 10⁹ do not swallow those of 10⁻⁹.
The pieces of Demmel and Nguyen (*Parallel Reproducible Summation*, 2015) follow the numbers; here they are fixed, since
clients must not learn each other's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MIDDLE, FINE = 2.0**-34, 2.0**-68
_AT_ONCE = 1 << 18
"""Rows whose parts are added before they are carried over."""
_BLOCK = 1 << 9
"""Rows that are split at once: few, so that they stay in the processor's cache."""


def parts(x: Array) -> Array:
    """Return Σ x over the rows of (n, …) as three parts, (3, …): exact to 2⁻⁶⁸ for each row.

    Entries are at most 10¹⁵, as all that clients return.
    """
    total = np.zeros((3, *x.shape[1:]))
    for start in range(0, len(x), _AT_ONCE):
        for block in range(start, min(start + _AT_ONCE, len(x)), _BLOCK):
            rest = x[block : block + _BLOCK].astype(np.float64)
            for place, unit in enumerate((1.0, MIDDLE, FINE)):
                whole = np.rint(rest * (1 / unit)) * unit  # exact: units are powers of 2
                total[place] += whole.sum(axis=0)
                rest -= whole
        total = carried(total)
    return total


def carried(total: Array) -> Array:
    """Return parts (3, …) of the same sum whose second and third are at most half of the unit before."""
    whole, middle, fine = total
    over = np.rint(fine / MIDDLE) * MIDDLE
    middle, fine = middle + over, fine - over
    over = np.rint(middle)
    return np.stack([whole + over, middle - over, fine])


def value(total: Array) -> Array:
    """Return the sum (…) that parts (3, …) stand for, rounded once or twice."""
    whole, middle, fine = carried(total)
    result: Array = whole + (middle + fine)
    return result
