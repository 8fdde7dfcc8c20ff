"""Tests of partitions.dirichlet: flwr-datasets' partitioner, configured as the settings say."""

from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset as HubDataset
from scipy.stats import entropy

from florilegium.common.errors import DataError
from florilegium.partitions.partitioners.dirichlet import MIN_EXAMPLES, make
from tests.support import settings

CLASSES, PER_CLASS = 5, 200
LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(CLASSES), PER_CLASS))


def _parts(seed=1, **chosen) -> list[np.ndarray]:
    partitioner = make(settings(partitioner="dirichlet", **chosen), None, seed)
    partitioner.dataset = HubDataset.from_dict({"row": np.arange(len(LABELS)), "label": LABELS})
    return [np.array(partitioner.load_partition(i)["row"]) for i in range(chosen["num_clients"])]


def _counts(parts) -> np.ndarray:
    return np.stack([np.bincount(LABELS[part], minlength=CLASSES) for part in parts])


@pytest.mark.parametrize("alpha", [0.3, 1.0, 100.0])
@pytest.mark.parametrize("balanced", [False, True])
def test_every_row_has_one_owner(alpha, balanced):
    parts = _parts(num_clients=8, alpha=alpha, balanced=balanced)
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert min(map(len, parts)) >= MIN_EXAMPLES


def test_a_large_alpha_is_close_to_uniform():
    """A share of Dir(α, …, α) with n = 10 and α = 10⁶ deviates from 1/10 by √(0.09 / 10⁷) ≈ 10⁻⁴: 0.02 rows of 200."""
    counts = _counts(_parts(num_clients=10, alpha=1e6))
    assert np.abs(counts - PER_CLASS / 10).max() <= 2  # the shares' ends are cut to whole rows


def test_a_small_alpha_is_skewed():
    mild, strong = (_counts(_parts(num_clients=10, alpha=alpha)) for alpha in (100.0, 0.1))
    assert entropy(strong, axis=1).mean() < 0.5 * entropy(mild, axis=1).mean()


@pytest.mark.long
def test_the_spread_of_shares_is_that_of_the_dirichlet_distribution():
    """Var(share) = (1/n)(1 − 1/n) / (nα + 1); 40 draws of 5 classes and 10 clients, α = 2."""
    shares = np.concatenate([_counts(_parts(seed, num_clients=10, alpha=2.0)) for seed in range(40)]) / PER_CLASS
    assert shares.var() == pytest.approx(0.1 * 0.9 / 21, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_a_balanced_client_that_has_its_share_receives_no_more(seed):
    counts = _counts(_parts(seed, num_clients=10, alpha=0.5, balanced=True))
    average = len(LABELS) / 10
    before = np.cumsum(counts, axis=1) - counts  # what a client had when the class was dealt
    assert (before > average).any()
    assert counts[before > average].max() <= 1  # at most the last row of a class, by rounding


@pytest.mark.filterwarnings("ignore:The specified min_partition_size")
def test_a_class_that_no_balanced_client_can_take_is_an_error():
    """With α = 10⁻⁹ a class goes to one client. flwr-datasets gives the last client all rows if that one is full."""
    refused = []
    for seed in range(12):
        try:
            counts = _counts(_parts(seed, num_clients=2, alpha=1e-9, balanced=True))
        except DataError as error:
            refused.append(str(error))
        else:
            before = np.cumsum(counts, axis=1) - counts
            assert counts[before > len(LABELS) / 2].max(initial=0) == 0
    assert 0 < len(refused) < 12
    assert all(text.startswith("balanced: all clients to which a class would go") for text in refused)


def test_balanced_sizes_are_more_equal():
    plain, balanced = (
        np.std([[len(part) for part in _parts(seed, num_clients=10, alpha=0.5, balanced=flag)] for seed in range(5)])
        for flag in (False, True)
    )
    assert balanced < 0.75 * plain


def test_the_seed_decides():
    first, second, other = (_counts(_parts(seed, num_clients=6, alpha=0.5)) for seed in (1, 1, 2))
    assert (first == second).all()
    assert (first != other).any()


class TestClassMix:
    """``dirichlet-over = "classes"``: each client's mix of classes is drawn."""

    def test_every_row_has_one_owner(self):
        parts = _parts(num_clients=12, alpha=0.3, dirichlet_over="classes")
        assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
        assert min(map(len, parts)) >= MIN_EXAMPLES

    @pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
    def test_mixes_are_as_concentrated_as_the_dirichlet_distribution(self, alpha):
        # For π ~ Dirichlet(α, …, α) in C dimensions E Σ π_c² = (α + 1)/(Cα + 1). A client's mix of rows is π, up to
        # the common factors that use up every class.
        found = []
        for seed in range(10):
            counts = _counts(_parts(seed, num_clients=25, alpha=alpha, dirichlet_over="classes"))
            found.append(((counts / counts.sum(axis=1, keepdims=True)) ** 2).sum(axis=1).mean())
        assert np.mean(found) == pytest.approx((alpha + 1) / (CLASSES * alpha + 1), rel=0.06)

    def test_the_other_way_is_another_distribution(self):
        # Shares of clients that are drawn class by class leave clients far more unequal in size.
        mixes, shares = (
            np.std([len(part) for part in _parts(num_clients=25, alpha=1.0, dirichlet_over=over)])
            for over in ("classes", "clients")
        )
        assert mixes < 0.7 * shares

    def test_the_seed_decides(self):
        first, same, other = (_counts(_parts(s, num_clients=6, alpha=0.5, dirichlet_over="classes")) for s in (1, 1, 2))
        np.testing.assert_array_equal(first, same)
        assert (first != other).any()

    def test_too_little_for_everybody_is_said(self):
        with pytest.raises(DataError, match="fewer than 2 examples in each of 10 draws"):
            _parts(num_clients=900, alpha=0.01, dirichlet_over="classes")

    @pytest.mark.parametrize("seed", range(20))
    def test_a_class_that_no_client_drew_is_not_lost(self, seed):
        """With α = 0.001 a client has one class alone, and many classes are nobody's: all shares round to 0."""
        labels = np.repeat(np.arange(CLASSES), PER_CLASS)
        partitioner = make(
            settings(partitioner="dirichlet", alpha=0.001, dirichlet_over="classes", num_clients=2), None, seed
        )
        partitioner.dataset = HubDataset.from_dict({"row": np.arange(len(labels)), "label": labels})
        rows = np.concatenate([partitioner.load_partition(client)["row"] for client in range(2)])
        assert sorted(rows) == list(range(len(labels)))
