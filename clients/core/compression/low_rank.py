"""PowerSGD: matrices of low rank by subspace iteration (Vogels, Karimireddy, Jaggi, NeurIPS 2019, Algorithm 1).

The update of an array is a matrix M (n × m); all axes but the first are one. From a Gaussian Q (m × r), each step takes
P = orthogonal basis of M·Q and Q = Mᵀ·P. Sent are P and Q, which stand for P·Qᵀ = P·Pᵀ·M. The paper starts from the Q
of the step before, and takes one step; here clients take part rarely, so that each message starts anew and takes two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.core.compression.scheme import Floats, Reader, Scheme

STEPS = 2
"""Number of steps of subspace iteration."""


class LowRank(Scheme):
    """Sends two factors of rank r for each matrix; arrays with fewer than two axes are sent as they are."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def _shape(self, like: Floats) -> tuple[int, int, int]:
        """Return the shape (n, m) of an array's matrix, and the rank r ≤ n, m of its factors."""
        rows = like.shape[0]
        columns = like.size // rows
        return rows, columns, min(self._rank, rows, columns)

    def size(self, like: Floats) -> int:
        """Return the number of bytes for both factors; those of the array if it is no matrix."""
        if like.ndim < 2 or not like.size:
            return like.nbytes
        rows, columns, rank = self._shape(like)
        return rank * (rows + columns) * like.itemsize

    def pack(self, array: Floats, rng: np.random.Generator) -> list[NDArray[Any]]:
        """Return P (n, r), with orthonormal columns, and Q (m, r)."""
        rows, columns, rank = self._shape(array)
        matrix = array.reshape(rows, columns)
        q = rng.standard_normal((columns, rank), array.dtype)
        for _ in range(STEPS):
            p = np.linalg.qr(matrix @ q).Q
            q = matrix.T @ p
        return [np.ascontiguousarray(p), np.ascontiguousarray(q)]

    def unpack(self, reader: Reader, like: Floats) -> Floats:
        """Return P·Qᵀ."""
        rows, columns, rank = self._shape(like)
        p = reader.numbers(rows * rank, like.dtype).reshape(rows, rank)
        q = reader.numbers(columns * rank, like.dtype).reshape(columns, rank)
        product: Floats = (p @ q.T).reshape(like.shape)
        return product
