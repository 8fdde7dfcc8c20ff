"""Clipping: limits the norm of each contribution to a sum, and thereby the sum's sensitivity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def clipping_factor(array: Array, bound: float, order: int = 2) -> float:
    """Return the factor, at most 1, that scales ``array`` down to norm ``bound``.

    Args:
        array: any shape.
        bound: B, ≥ 0.
        order: order of the norm over all entries, 1 or 2.
    """
    norm = float(np.linalg.norm(array.ravel(), order))
    return bound / norm if norm > bound else 1.0


def clip_together(arrays: Mapping[str, Array], bound: float, *, by_array: bool = False) -> dict[str, Array]:
    """Scale ``arrays`` down so that the Euclidean norm of all their entries together is at most ``bound``.

    Args:
        arrays: arrays by name; those that need no scaling are returned unchanged, without a copy.
        bound: C, > 0.
        by_array: whether each of the L arrays is clipped separately, to norm C/√L, instead of all by one factor.
    """
    if by_array:
        each = bound / np.sqrt(len(arrays))
        factors = {name: clipping_factor(array, each) for name, array in arrays.items()}
    else:
        norm = np.sqrt(sum(float(np.vdot(array, array)) for array in arrays.values()))
        factors = dict.fromkeys(arrays, bound / norm if norm > bound else 1.0)
    return {name: array * factors[name] if factors[name] < 1 else array for name, array in arrays.items()}


def clip_rows(rows: Array, bound: float) -> Array:
    """Return ``rows`` (n, d), each scaled down to Euclidean norm ``bound`` where its norm is larger.

    A row that is not finite becomes zero: otherwise it would spoil a sum, which tells that it is there.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(norms).all():
        rows = np.where(np.isfinite(norms), rows, 0.0)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if norms.max(initial=0.0) <= bound:
        return rows
    result: Array = rows * (bound / np.maximum(norms, bound))
    return result
