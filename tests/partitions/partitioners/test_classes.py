"""Tests of partitions.classes: S classes per client, how many owners a class has, and how its samples are dealt."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from datasets import Dataset as HubDataset
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from florilegium.common.errors import DataError
from florilegium.partitions.partitioners.classes import ClassPartitioner
from florilegium.partitions.partitioners.classes import make as make_partitioner
from tests import support

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=8)
assignments = st.sampled_from(["random", "even"])


def _deal(sizes, n, s, m=0, assignment="random", seed=0) -> tuple[list[np.ndarray], np.ndarray]:
    """Deal classes of the given sizes; return every client's rows and the label of each row."""
    labels = np.random.default_rng(9).permutation(np.repeat(np.arange(len(sizes)), sizes))
    low, high = s if isinstance(s, tuple) else (s, s)
    partitioner = ClassPartitioner(n, (low, high), m, assignment, seed)
    partitioner.dataset = HubDataset.from_dict({"row": np.arange(len(labels)), "label": labels})
    assert partitioner.num_partitions == n
    return [np.array(partitioner.load_partition(i)["row"]) for i in range(n)], labels


def _counts(parts, labels) -> np.ndarray:
    """Samples of each client and class."""
    classes = labels.max() + 1
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


class TestClassesOfAClient:
    @settings(max_examples=12)
    @given(st.integers(1, 12), st.integers(1, 8), st.data(), assignments, st.integers(0, 5))
    def test_every_client_has_exactly_s_classes(self, n, classes, data, assignment, seed):
        s = data.draw(st.integers(1, classes))
        counts = _counts(*_deal([20] * classes, n, s, 0, assignment, seed))
        assert ((counts > 0).sum(axis=1) == s).all()

    @settings(max_examples=12)
    @given(st.integers(1, 12), st.integers(1, 8), st.data(), assignments, st.integers(0, 5))
    def test_with_a_range_every_client_has_its_own_s_within_it(self, n, classes, data, assignment, seed):
        low = data.draw(st.integers(1, classes))
        high = data.draw(st.integers(low, classes))
        owned = (_counts(*_deal([20] * classes, n, (low, high), 0, assignment, seed)) > 0).sum(axis=1)
        assert owned.min() >= low
        assert owned.max() <= high

    @pytest.mark.parametrize("assignment", ["random", "even"])
    def test_all_of_a_range_occurs(self, assignment):
        owned = (_counts(*_deal([50] * 10, 30, (2, 3), 0, assignment)) > 0).sum(axis=1)
        assert set(owned.tolist()) == {2, 3}

    def test_random_classes_are_uniform(self):
        """Owners of a class: 400 clients with 2 of 10 classes each, so 80 expected; χ² at the level 10⁻³."""
        owners = (_counts(*_deal([400] * 10, 400, 2)) > 0).sum(axis=0)
        assert owners.sum() == 800
        assert chisquare(owners).pvalue > 1e-3
        assert owners.min() < owners.max()  # not dealt evenly

    @settings(max_examples=12)
    @given(st.integers(1, 15), st.integers(1, 9), st.data(), st.integers(0, 5))
    def test_even_numbers_of_owners_differ_by_at_most_one(self, n, classes, data, seed):
        low = data.draw(st.integers(1, classes))
        high = data.draw(st.integers(low, classes))
        owners = (_counts(*_deal([20] * classes, n, (low, high), 0, "even", seed)) > 0).sum(axis=0)
        assert owners.max() - owners.min() <= 1

    def test_even_pairs_are_drawn_at_random(self):
        pairs = [
            {frozenset(np.flatnonzero(row)) for row in _counts(*_deal([20] * 10, 10, 2, 0, "even", seed))}
            for seed in range(3)
        ]
        assert pairs[0] != pairs[1] != pairs[2]


class TestShards:
    @settings(max_examples=12)
    @given(st.integers(1, 12), st.integers(1, 8), st.data(), st.integers(0, 5), st.booleans())
    def test_classes_are_cut_into_equal_numbers_of_shards(self, n, classes, data, seed, given_size):
        """Counted in shards: 60 rows of each class, so that all shards of a class are equal to within one row."""
        s = data.draw(st.integers(1, classes))
        parts, labels = _deal([60] * classes, n, s, s if given_size else 0, "shards", seed)
        if given_size:  # a row for each shard
            shards = _counts(parts, labels)
            assert (shards.sum(axis=1) == s).all()
            assert np.ptp(shards.sum(axis=0)) <= 1
        elif n * s >= classes:
            assert sorted(np.concatenate(parts)) == list(range(len(labels)))

    def test_a_client_has_as_many_classes_as_shuffled_shards_give(self):
        """S of n·S shards, n·S/C of each class: E = C·(1 − (n·S − n·S/C choose S)/(n·S choose S))."""
        n, classes, s = 100, 10, 5
        shards = n * s
        expected = classes * (1 - comb(shards - shards // classes, s) / comb(shards, s))
        owned = [(_counts(*_deal([60] * classes, n, s, s, "shards", seed)) > 0).sum(axis=1).mean() for seed in range(5)]
        assert expected == pytest.approx(4.11, abs=0.01)
        assert np.mean(owned) == pytest.approx(expected, abs=4 * 0.7 / np.sqrt(n * 5))

    def test_two_shards_of_a_class_are_twice_its_rows(self):
        counts = _counts(*_deal([60] * 2, 30, 2, 4, "shards"))
        assert {*map(tuple, counts.tolist())} == {(0, 4), (2, 2), (4, 0)}


class TestSharingOut:
    """samples-per-client = 0."""

    @settings(max_examples=12)
    @given(sizes, st.integers(1, 10), st.data(), assignments)
    def test_every_row_of_an_owned_class_has_one_owner(self, sizes, n, data, assignment):
        s = data.draw(st.integers(1, len(sizes)))
        try:
            parts, labels = _deal(sizes, n, s, 0, assignment)
        except DataError:
            assume(False)  # a class with fewer samples than owners
        owned = np.flatnonzero(_counts(parts, labels).sum(axis=0))
        rows = np.concatenate(parts)
        assert sorted(rows) == np.flatnonzero(np.isin(labels, owned)).tolist()

    def test_with_all_classes_owned_everything_is_shared_exactly_once(self):
        parts, labels = _deal([30, 7, 11], n=6, s=2, assignment="even")
        assert sorted(np.concatenate(parts)) == list(range(len(labels)))

    @settings(max_examples=12)
    @given(st.lists(st.integers(12, 40), min_size=1, max_size=8), st.integers(1, 12), st.data(), assignments)
    def test_owners_have_equal_shares_of_a_class(self, sizes, n, data, assignment):
        counts = _counts(*_deal(sizes, n, data.draw(st.integers(1, len(sizes))), 0, assignment))
        for size, column in zip(sizes, counts.T, strict=True):
            shares = column[column > 0]
            if len(shares):
                assert shares.sum() == size
                assert shares.max() - shares.min() <= 1


class TestDealingSamples:
    """samples-per-client = m."""

    @settings(max_examples=12)
    @given(st.integers(1, 10), st.data(), assignments)
    def test_every_client_has_m_samples_m_over_s_of_each_class(self, n, data, assignment):
        classes = data.draw(st.integers(1, 6))
        s = data.draw(st.integers(1, classes))
        m = data.draw(st.integers(s, 20 * s))
        counts = _counts(*_deal([25] * classes, n, s, m, assignment))
        assert (counts.sum(axis=1) == m).all()
        for row in counts:
            shares = sorted(row[row > 0])
            assert shares == [m // s] * (s - m % s) + [m // s + 1] * (m % s)

    @settings(max_examples=12)
    @given(st.integers(1, 12), st.data(), assignments)
    def test_a_class_is_used_up_before_any_of_its_samples_is_used_again(self, n, data, assignment):
        """So there is no overlap while samples last, and never a row twice in one client."""
        size = data.draw(st.integers(5, 20))
        m = data.draw(st.integers(2, 2 * size))
        parts, labels = _deal([size] * 4, n, 2, m, assignment)
        assert all(len(set(part.tolist())) == len(part) for part in parts)
        uses = np.bincount(np.concatenate(parts), minlength=len(labels))
        for c in range(4):
            of_class = uses[labels == c]
            assert of_class.max() - of_class.min() <= 1

    def test_reuse_by_hand(self):
        """One class of 10 and three clients with 8 each: 24 = 2·10 + 4, so 4 rows three times and 6 twice."""
        parts, _ = _deal([10], n=3, s=1, m=8)
        uses = np.bincount(np.concatenate(parts), minlength=10)
        assert sorted(uses.tolist()) == [2] * 6 + [3] * 4
        assert [len(set(part.tolist())) for part in parts] == [8, 8, 8]

    def test_samples_are_drawn_at_random_from_the_class(self):
        parts, _ = _deal([100], n=1, s=1, m=10)
        assert parts[0].tolist() != list(range(10))


class TestSeeds:
    @pytest.mark.parametrize("assignment", ["random", "even"])
    def test_the_seed_alone_decides(self, assignment):
        first, second, other = (_deal([20] * 6, 5, 2, 10, assignment, seed)[0] for seed in (1, 1, 2))
        assert all((a == b).all() for a, b in zip(first, second, strict=True))
        assert not all((a == b).all() for a, b in zip(first, other, strict=True))

    def test_the_order_of_loading_does_not_matter(self):
        def load(order):
            partitioner = ClassPartitioner(4, (2, 2), 0, "random", seed=3)
            partitioner.dataset = HubDataset.from_dict({"row": np.arange(40), "label": np.arange(40) % 5})
            return {i: partitioner.load_partition(i)["row"][:] for i in order}

        assert load([0, 1, 2, 3]) == load([3, 1, 2, 0])


def test_make_reads_the_configuration():
    chosen = support.settings(num_clients=7, classes_per_client="2-4", class_assignment="even", samples_per_client=12)
    labels = np.arange(300) % 6
    partitioner = make_partitioner(chosen, None, seed=1)
    partitioner.dataset = HubDataset.from_dict({"row": np.arange(300), "label": labels})
    counts = _counts([np.array(partitioner.load_partition(i)["row"]) for i in range(7)], labels)
    assert (counts.sum(axis=1) == 12).all()
    owned = counts > 0
    assert set(owned.sum(axis=1).tolist()) <= {2, 3, 4}
    assert np.ptp(owned.sum(axis=0)) <= 1


class TestFailure:
    @pytest.mark.parametrize("s", [4, (2, 4)])
    def test_more_classes_than_there_are_name_the_key(self, s):
        with pytest.raises(DataError, match=r"classes-per-client: .* 4 classes, the data have only 3"):
            _deal([20] * 3, 2, s)

    def test_more_samples_than_a_class_has_name_the_key_the_class_and_the_remedy(self):
        with pytest.raises(DataError) as caught:
            _deal([5, 5], n=2, s=2, m=12)
        message = str(caught.value)
        assert message.startswith("samples-per-client: client 0 needs 6 samples of class ")
        assert "only 5" in message
        assert "lower samples-per-client or raise classes-per-client" in message

    def test_more_owners_than_samples_name_the_key_and_the_class(self):
        with pytest.raises(DataError, match=r"num-clients: class 0 has 3 samples for 4 clients; use fewer clients"):
            _deal([3], n=4, s=1)
