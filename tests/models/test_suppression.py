"""Small counts are hidden, and cannot be found from the total and what is shown."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from florilegium.models.statistics.suppression import HIDDEN, hidden, shown

LEAST = 4


def _possible(counts: tuple[int, ...]) -> list[set[int]]:
    """Return what each hidden cell may hold, for who knows the total, the cells that are shown, and the rule."""
    mask, total = hidden(np.array(counts, float), LEAST), sum(counts)
    values = [set[int]() for _ in counts]
    for other in product(*(range(total + 1) if one else [count] for one, count in zip(mask, counts, strict=True))):
        if sum(other) == total and np.array_equal(hidden(np.array(other, float), LEAST), mask):
            for place, value in enumerate(other):
                values[place].add(value)
    return [own for own, one in zip(values, mask, strict=True) if one]


@pytest.mark.parametrize("cells", [2, 3, 4])
def test_no_small_count_follows_by_subtraction(cells: int) -> None:
    """Of all tables with counts up to 9: every hidden count has at least two values that fit all that is known."""
    for counts in product(range(10), repeat=cells):
        if 0 < sum(counts) < LEAST:
            assert hidden(np.array(counts, float), LEAST).all()
            continue
        mask = hidden(np.array(counts, float), LEAST)
        assert all(mask[i] for i, count in enumerate(counts) if 0 < count < LEAST)
        if sum(counts) <= 15:
            assert all(len(values) > 1 for values in _possible(counts)), counts


def test_large_counts_are_shown() -> None:
    assert not hidden(np.array([0.0, 4, 100]), LEAST).any()
    assert np.array_equal(shown(np.array([1.0, 9, 50, 0]), LEAST), [HIDDEN, HIDDEN, 50, 0])
    assert not hidden(np.array([1.0, 2]), 1).any()
