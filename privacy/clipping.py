"""Clipping: nobody contributes more to a sum than a bound, which is the sum's sensitivity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def clipping_factor(array: Array, bound: float, order: int = 2) -> float:
    """Return the factor, at most 1, that scales ``array`` down to norm ``bound``.

    Args:
        array: any shape.
        bound: B, ≥ 0.
        order: of the norm over all entries, 1 or 2.
    """
    norm = float(np.linalg.norm(array.ravel(), order))
    return bound / norm if norm > bound else 1.0


def clip_rows(rows: Array, bound: float) -> Array:
    """Return ``rows`` (n, d), each scaled down to Euclidean norm ``bound`` where its norm is larger."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if norms.max(initial=0.0) <= bound:
        return rows
    result: Array = rows * (bound / np.maximum(norms, bound))
    return result
