"""The rows that a device without test rows holds back: a fifth of each kind; a row more or less moves no other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from florilegium.partitions.clientdata import Examples
from florilegium.partitions.device_data import held_back


def _examples(kinds: list[int], weights: list[float] | None = None) -> Examples:
    """Return examples of which those of the same kind are equal."""
    numbers = torch.tensor(kinds)
    x = torch.stack([numbers % 5, numbers // 5], dim=1).float()
    return Examples(x, numbers % 2, weights=None if weights is None else torch.tensor(weights))


def _training(examples: Examples) -> Counter[tuple[float, ...]]:
    left = examples.rows(~held_back(examples))
    weights = torch.ones(len(left)) if left.weights is None else left.weights
    return Counter(zip(*left.x.T.tolist(), left.y.tolist(), weights.tolist(), strict=True))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_more_or_less_changes_the_training_rows_by_one_at_most(weighted: bool) -> None:
    """The account of private examples assumes it, also of rows that are equal, wherever they stand."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 4, 40).tolist()
    weights = rng.choice([0.5, 1.0], 40).tolist() if weighted else None
    whole = _training(_examples(kinds, weights))
    for row in range(40):
        others = [*range(row), *range(row + 1, 40)]
        fewer = _training(_examples([kinds[i] for i in others], [weights[i] for i in others] if weights else None))
        assert not fewer - whole  # no row has come
        assert (whole - fewer).total() <= 1


def test_of_few_kinds_of_rows_about_a_fifth_of_each_is_held_back() -> None:
    """The draws of a kind's rows are independent: the count is binomial, and five deviations are never exceeded."""
    count = 2000
    examples = _examples([*range(8)] * count)
    chosen = held_back(examples).reshape(count, 8)
    assert ((chosen.sum(dim=0) - 0.2 * count).abs() < 5 * (count * 0.2 * 0.8) ** 0.5).all()


def test_no_class_of_equal_pictures_vanishes_from_training() -> None:
    """All five equal pictures of a class are held back with probability 0.2⁵; before, with probability 0.2."""
    pictures = torch.arange(50.0).reshape(50, 1, 1, 1).expand(50, 3, 4, 4).repeat_interleave(5, dim=0)
    labels = torch.arange(50).repeat_interleave(5)
    left = ~held_back(Examples(pictures, labels))
    assert set(labels[left].tolist()) == {*range(50)}


def test_distinct_rows_are_where_earlier_versions_had_them() -> None:
    """A keyed hash of the row alone decides on the first row of its kind."""
    from hashlib import blake2b

    examples = _examples([*range(30)])
    contents = [x.numpy().tobytes() + y.numpy().tobytes() for x, y in zip(examples.x, examples.y, strict=True)]
    hashes = [int.from_bytes(blake2b(c, digest_size=8, key=b"hold-back").digest(), "big") for c in contents]
    assert held_back(examples).tolist() == [value < 2**64 / 5 for value in hashes]


def test_targets_that_are_numbers_tell_rows_apart() -> None:
    x = torch.zeros(400, 2)
    examples = Examples(x, torch.arange(400.0).reshape(400, 1))
    assert 40 < int(held_back(examples).sum()) < 120
