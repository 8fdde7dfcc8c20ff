"""The audit of sums against ranks of matrices: a row is revealed if its unit vector does not raise the rank."""

from __future__ import annotations

import numpy as np
import pytest

from florilegium.privacy.revealing import revealed


@pytest.mark.parametrize("seed", range(8))
def test_by_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, k = 9, 3
    partitions = [rng.integers(-1, k, n) for _ in range(1 + seed % 4)]
    sets = np.array([labels == part for labels in partitions for part in range(k)], dtype=float)
    rank = np.linalg.matrix_rank(sets)
    expected = [np.linalg.matrix_rank(np.vstack([sets, unit])) == rank for unit in np.eye(n)]
    assert revealed(partitions).tolist() == expected


def test_two_sums_that_differ_in_a_row() -> None:
    first, second = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 1])
    assert not revealed([first]).any()
    assert revealed([first, second]).tolist() == [False, False, True, False, False, False]
    third = np.array([0, 1, 1, 1, 1, 1])
    assert revealed([first, third]).tolist() == [True, False, False, False, False, False]
    assert revealed([first, second, third]).tolist() == [True, True, True, False, False, False]
    assert not revealed([np.full(3, -1)]).any()
