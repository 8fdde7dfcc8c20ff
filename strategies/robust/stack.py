"""The updates of a cohort as rows of one matrix, read block by block, so that no rule copies all of them.

Rules work on distances between rows, on linear combinations of rows, or on each entry by itself. What mixes rows before
a rule (``before.py``) is a matrix M, whose rows add up to 1: the rule sees the rows of M·X, of which a block exists
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from florilegium.models.parameters import Arrays


Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

ENTRIES = 1 << 18
"""Number of entries of all rows together that are read at a time: 1 MiB of float32."""
LONG = 4.0
"""Updates that are so many times as long as the median one are much longer than most."""


@dataclass(frozen=True)
class Block:
    """Some columns of all rows.

    Attributes:
        name: the array that they belong to.
        where: their places in this array, flattened.
        rows: their entries, (rows, columns), in the precision of the updates.
    """

    name: str
    where: slice
    rows: NDArray[Any]

    def of(self, arrays: Arrays) -> NDArray[Any]:
        """Return the same columns of ``arrays``, (columns,)."""
        flat: NDArray[Any] = arrays[self.name].reshape(-1)[self.where]
        return flat


@dataclass(frozen=True)
class Stack:
    """Updates of c clients, one row each.

    Attributes:
        arrays: the updates: arrays by name, each (c, …).
        weights: weight of each row in an average, (rows,), above 0.
        mixing: M, (rows, c), if the rows are mixtures of updates, with sums 1; None: they are the updates.
    """

    arrays: Arrays
    weights: Vector
    mixing: Matrix | None = None

    def __len__(self) -> int:
        return len(self.weights)

    def mixed(self, mixing: Matrix) -> Stack:
        """Return the rows M·X, all of the same weight; ``mixing``: M, (new rows, rows)."""
        before = self.mixing
        return replace(self, weights=np.ones(len(mixing)), mixing=mixing if before is None else mixing @ before)

    def only(self, names: Callable[[str], bool]) -> Stack:
        """Return the rows with those arrays alone whose names fulfil ``names``."""
        return replace(self, arrays={name: array for name, array in self.arrays.items() if names(name)})

    def blocks(self) -> Iterator[Block]:
        """Yield all columns, some at a time."""
        for name, array in self.arrays.items():
            flat = array.reshape(len(array), -1)
            width = max(1, ENTRIES // len(array))
            for start in range(0, flat.shape[1], width):
                where = slice(start, start + width)
                rows = flat[:, where]
                yield Block(name, where, rows if self.mixing is None else self.mixing @ rows)

    def entrywise(self, combine: Callable[[NDArray[Any]], Vector]) -> Arrays:
        """Return what ``combine`` makes of each column: (rows, k) → (k,), in float64."""
        found = {name: np.empty(array[0].size) for name, array in self.arrays.items()}
        for block in self.blocks():
            found[block.name][block.where] = combine(block.rows)
        return {name: found[name].reshape(array.shape[1:]) for name, array in self.arrays.items()}

    def combination(self, coefficients: Vector) -> Arrays:
        """Return Σ aᵢ·rowᵢ in float64; ``coefficients``: a, (rows,)."""
        own = coefficients if self.mixing is None else coefficients @ self.mixing
        used = np.flatnonzero(own)
        if len(used) == 1 and own[used[0]] == 1:  # as it is, bit by bit
            return {name: array[used[0]].astype(np.float64) for name, array in self.arrays.items()}
        return replace(self, mixing=None).entrywise(lambda rows: own @ rows.astype(np.float64, copy=False))

    def products(self, centre: Arrays | int | None) -> Matrix:
        """Return the inner products of all rows minus a common vector, (rows, rows).

        Products of float32 are summed in float32 within a block, whose error is about 10⁻⁷ of the lengths' squares.

        Args:
            centre: arrays; or the number of an update; None: the updates' mean.
        """
        count = len(next(iter(self.arrays.values())))
        total = np.zeros((count, count))
        for block in replace(self, mixing=None).blocks():
            rows = block.rows
            if isinstance(centre, int):
                middle = rows[centre]
            else:
                middle = rows.mean(axis=0) if centre is None else block.of(centre).astype(rows.dtype)
            left = rows - middle  # all rows minus the same numbers, whatever their rounding
            total += left @ left.T
        return total if self.mixing is None else np.asarray(self.mixing @ total @ self.mixing.T)

    @cached_property
    def inner(self) -> Matrix:
        """The inner products of all rows minus a central point, (rows, rows).

        The point is the updates' mean. If some are much longer than most others, they have moved the mean, and the
        differences of the others would be lost in its rounding: then it is the update with the smallest median distance
        to the others.
        """
        plain = replace(self, mixing=None)
        found, tried = plain.products(None), set[int]()
        while np.diag(found).max() > LONG**2 * np.median(np.diag(found)):
            medoid = int(np.median(_distances(found), axis=1).argmin())
            if medoid in tried:
                break
            tried.add(medoid)
            found = plain.products(medoid)
        return found if self.mixing is None else np.asarray(self.mixing @ found @ self.mixing.T)

    @cached_property
    def distances(self) -> Matrix:
        """The squared distances between all rows, (rows, rows), exactly 0 on the diagonal."""
        return _distances(self.inner)

    def against(self, arrays: Arrays) -> tuple[Vector, Vector]:
        """Return the inner product of each row with ``arrays``, and its squared length, (rows,) each."""
        inner, squares = np.zeros(len(self)), np.zeros(len(self))
        for block in self.blocks():
            rows = block.rows.astype(np.float64, copy=False)
            inner += rows @ block.of(arrays)
            squares += np.einsum("ij,ij->i", rows, rows)
        return inner, squares

    def lengths(self, minus: Arrays | None = None) -> Vector:
        """Return the Euclidean length of each row, minus the same arrays, (rows,); rounded as :meth:`products`."""
        squares = np.zeros(len(self))
        for block in self.blocks():
            rows = block.rows if minus is None else block.rows - block.of(minus).astype(block.rows.dtype)
            squares += np.einsum("ij,ij->i", rows, rows)
        return np.sqrt(squares)


def _distances(products: Matrix) -> Matrix:
    """Return squared distances that follow from inner products, (n, n)."""
    squares = np.diag(products)
    found = np.maximum(squares[:, None] + squares - 2 * products, 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def ordered(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the entries of each column in ascending order, (columns, rows).

    Short rows of a contiguous array are sorted several times as fast as columns.
    """
    found = np.ascontiguousarray(rows.T)
    found.sort(axis=1)
    return found


def smallest(scores: Vector, count: int) -> NDArray[np.intp]:
    """Return the places of the ``count`` smallest scores, in ascending order; of equal ones the first come first.

    Scores that agree in nine digits are equal. The difference is relative to the scores themselves: a single huge one
    makes no others equal.
    """
    digits, exponents = np.frexp(scores)
    rounded = np.ldexp(np.round(np.ldexp(digits, 30)), exponents - 30)
    return np.argsort(rounded, kind="stable")[:count]
