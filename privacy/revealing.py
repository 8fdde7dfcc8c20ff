"""Whether sums of rows, without noise, reveal single rows: the audit of sum queries by linear algebra.

A row can be computed from sums over several sets of rows if and only if its indicator vector is a linear combination of
those of the sets (Chin and Özsoyoğlu, *Auditing and Inference Control in Statistical Databases*, 1982). Two examples:
a set of one row; two sets that differ in one row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]

_TOLERANCE = 1e-9


def revealed(partitions: Sequence[Labels]) -> NDArray[np.bool_]:
    """Return which rows can be computed from sums over the parts of several partitions, (n,).

    Args:
        partitions: for each, the part that each row belongs to, (n,); rows with a negative number belong to none.
    """
    parts = [labels == k for labels in partitions for k in np.unique(labels[labels >= 0])]
    sets = {part.tobytes(): part for part in parts}
    if not sets:
        return np.zeros(len(partitions[0]) if partitions else 0, dtype=bool)
    _, values, basis = np.linalg.svd(np.stack([*sets.values()]).astype(np.float64), full_matrices=False)
    span = basis[values > _TOLERANCE * values[0]]
    lengths: NDArray[np.float64] = np.square(span).sum(axis=0)  # of the projections of unit vectors
    return lengths > 1 - _TOLERANCE
