"""Small counts are hidden, and cannot be found from the total and what is shown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from florilegium.models.statistics.suppression import HIDDEN, hidden, hidden_of_column, shown, split_hidden

LEAST = 4


Rule = Callable[[NDArray[np.float64], float], NDArray[np.bool_]]


def _possible(counts: tuple[int, ...], rule: Rule) -> list[set[int]]:
    """Return what each hidden cell may hold, for who knows the total, the cells that are shown, and the rule."""
    mask, total = rule(np.array(counts, float), LEAST), sum(counts)
    values = [set[int]() for _ in counts]
    for other in product(*(range(total + 1) if one else [count] for one, count in zip(mask, counts, strict=True))):
        if sum(other) == total and np.array_equal(rule(np.array(other, float), LEAST), mask):
            for place, value in enumerate(other):
                values[place].add(value)
    return [own for own, one in zip(values, mask, strict=True) if one]


@pytest.mark.parametrize("rule", [hidden, hidden_of_column])
@pytest.mark.parametrize("cells", [2, 3, 4])
def test_no_small_count_follows_by_subtraction(cells: int, rule: Rule) -> None:
    """Of all tables with counts up to 9: every hidden count has at least two values that fit all that is known."""
    for counts in product(range(10), repeat=cells):
        if 0 < sum(counts) < LEAST:
            assert rule(np.array(counts, float), LEAST).all()
            continue
        mask = rule(np.array(counts, float), LEAST)
        assert all(mask[i] for i, count in enumerate(counts) if 0 < count < LEAST)
        if sum(counts) <= 15:
            assert all(len(values) > 1 for values in _possible(counts, rule)), counts


@pytest.mark.parametrize("cells", [3, 4])
def test_known_values_give_no_small_sum_away(cells: int) -> None:
    """Where their number is told, what is hidden holds at least the minimum together."""
    for counts in product(range(10), repeat=cells):
        table = np.array(counts, float)
        mask = hidden_of_column(table, LEAST)
        if not split_hidden(table, LEAST):
            assert not mask[-1]
            assert not mask.any() or table[mask].sum() >= LEAST


def test_large_counts_are_shown() -> None:
    assert not hidden(np.array([0.0, 4, 100]), LEAST).any()
    assert np.array_equal(shown(np.array([1.0, 9, 50, 0]), LEAST), [HIDDEN, HIDDEN, 50, 0])
    assert np.array_equal(shown(np.array([90.0, 50, 1, 9]), LEAST), [HIDDEN, 50, HIDDEN, 9])
    assert np.array_equal(shown(np.array([90.0, 50, 40, 3]), LEAST), [HIDDEN, 50, 40, HIDDEN])
    assert not hidden(np.array([1.0, 2]), 1).any()
