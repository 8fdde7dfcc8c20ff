"""Tests of common.blocks: what is computed a block at a time is what NumPy computes at once."""

from __future__ import annotations

import numpy as np
import pytest

from florilegium.common.blocks import BLOCK, blocks, entries, squares


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (BLOCK,), (3, BLOCK - 1)])
def test_blocks_are_the_same_entries_of_all_arrays_and_can_be_written(shape):
    rng = np.random.default_rng(1)
    one, other, new = rng.standard_normal(shape), rng.standard_normal(shape).T.copy().T, np.empty(shape)
    for to, a, b in blocks(new, one, other):
        assert len(to) == len(a) == len(b) <= BLOCK
        to[:] = a - b
    assert (new == one - other).all()


@pytest.mark.parametrize(
    "sizes", [(), (0,), (3, 4), (BLOCK,), (BLOCK - 1, 1), (5, 3 * BLOCK + 7, 0, BLOCK - 12, 2)], ids=str
)
def test_entries_are_those_of_the_arrays_joined(sizes):
    arrays = [np.random.default_rng(size).standard_normal((size, 1), np.float32) for size in sizes]
    found = [*entries(arrays)]
    assert all(len(block) == BLOCK for block in found[:-1])
    joined = np.concatenate([np.zeros(0), *found])
    assert joined.dtype == np.float64
    assert joined.tolist() == [float(value) for array in arrays for value in array[:, 0]]


@pytest.mark.parametrize("size", [0, 1, 129, BLOCK, BLOCK + 1, 2 * BLOCK - 3, 5 * BLOCK + 77, 999_999])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_squares_are_added_in_numpys_order(size, kind):
    """Numbers of very different size, so that another order would round otherwise."""
    rng = np.random.default_rng(size)
    array = (rng.standard_normal(size) * 10 ** rng.uniform(-6, 6, size)).astype(kind)
    assert squares(array) == float(np.square(array, dtype=np.float64).sum())
    if size > 100_000:
        assert squares(array) != pytest.approx(sum(map(float, np.square(array, dtype=np.float64))), rel=0, abs=0)


@pytest.mark.parametrize("shape", [(400, 1000), (7, 11, 13, 101)])
def test_squares_of_arrays_whose_axes_lie_otherwise_in_memory(shape):
    array = np.random.default_rng(1).standard_normal(shape)
    for one in (array, array.T, np.asfortranarray(array), array[::2]):
        assert squares(one) == float(np.square(one).sum())
