"""The splits of PFLlib, NIID-Bench and extended Dirichlet, against their definitions and closed forms."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest, uniform

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.clientdata import as_seen, decoded, simulated
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import build, federate
from florilegium.partitions.fingerprints import fingerprint_of_federation
from florilegium.partitions.held_out import check_apart
from florilegium.partitions.partitioners import extended_dirichlet
from florilegium.partitions.partitioners.dirichlet_shares import cut, dirichlet_counts
from florilegium.partitions.partitioners.extended_dirichlet import draw_holders
from florilegium.partitions.partitioners.noise import add_noise
from florilegium.partitions.partitioners.pfllib import amounts, classes_of
from florilegium.partitions.partitioners.quantity_skew import draw_sizes
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Dealt, Federation, Shares
from florilegium.partitions.spec import Dataset, Split
from florilegium.partitions.split_files import of_federation
from tests.support import CACHE, settings

CLASSES = 10


@cache
def _dataset(train: int = 3000, test: int = 1000) -> Dataset:
    """Return a dataset with equally many rows of each class, in a random order."""
    order = np.random.default_rng(0)

    def split(rows: int) -> Split:
        return Split(np.zeros((rows, 1, 1, 1), np.uint8), order.permutation(np.arange(rows) % CLASSES), {})

    spec = dataclasses.replace(DATASETS["digits"], classes=CLASSES)
    return Dataset(spec, split(train), split(test), f"made of {train} and {test}")


@cache
def _built(partitioner: str, clients: int = 20, seed: int = 1, **own: Any) -> tuple[Federation, np.ndarray]:
    """Return a federation of the dataset, and its counts over clients and classes, training and test together."""
    keys = PARTITIONERS[partitioner].section()(**own)
    chosen = FederationSettings(
        partitioner=partitioner, own=keys, num_clients=clients, seed=seed, dataset="made", cache_dir=str(CACHE)
    )
    dataset = _dataset()
    federation = build(chosen, dataset)
    if not federation.test_from_train:
        return federation, federation.class_counts(dataset)
    labels = np.concatenate([dataset.train.y, dataset.test.y])
    rows = [np.concatenate([federation.train[i], federation.test[i]]) for i in range(clients)]
    return federation, np.stack([np.bincount(labels[own], minlength=CLASSES) for own in rows])


class TestPfllib:
    @pytest.mark.parametrize("name", ["pfllib-pathological", "pfllib-practical"])
    def test_training_and_test_rows_are_divided_together_and_a_quarter_is_held_out(self, name):
        federation, counts = _built(name)
        train, test = federation.train, federation.test
        assert federation.test_from_train
        assert sorted([*train.rows, *test.rows]) == list(range(4000))
        assert counts.sum(axis=0).tolist() == [400] * CLASSES
        # scikit-learn's rule: as many training rows as fit into three quarters.
        assert train.sizes.tolist() == [3 * (a + b) // 4 for a, b in zip(train.sizes, test.sizes, strict=True)]
        # Both come from both splits: three of four rows have numbers below 3,000.
        for rows in (train.rows, test.rows):
            assert (rows < 3000).mean() == pytest.approx(0.75, abs=0.05)

    def test_classes_go_to_groups_of_clients_in_order(self):
        """20 clients with 2 of 10 classes: each class has 4 clients; clients 0–3 hold classes 0 and 1, and so on."""
        counts = _built("pfllib-pathological")[1]
        held = [np.flatnonzero(row).tolist() for row in counts]
        assert held == [[2 * (client // 4), 2 * (client // 4) + 1] for client in range(20)]

    @pytest.mark.parametrize(
        ("n", "classes", "each", "clients"),
        [
            (2, 2, 1, [[0], [1]]),
            (2, 2, 2, [[0, 1], [0, 1]]),
            (3, 2, 1, [[0, 1], [2]]),  # ⌈1.5⌉ = 2 clients, then those that are left
            (4, 3, 2, [[0, 1, 2], [0, 1, 2], [3]]),  # the last client goes short
        ],
    )
    def test_small_assignments_by_hand(self, n, classes, each, clients):
        assert [own.tolist() for own in classes_of(n, classes, each)] == clients

    def test_amounts_are_uniform_and_the_last_client_gets_the_rest(self):
        """m = 7,000 / 4 = 1,750: three clients draw from 175 to 1,749, on average 962."""
        rng = np.random.default_rng(0)
        drawn = np.stack([amounts(0, 7000, 4, 4.0, False, rng) for _ in range(2000)])
        assert (drawn.sum(axis=1) == 7000).all()
        first = drawn[:, :3]
        assert (first.min(), first.max()) == (175, 1749)
        assert kstest(first.ravel(), uniform(175, 1575).cdf).pvalue > 1e-3
        assert drawn[:, 3].mean() == pytest.approx(7000 - 3 * 962, rel=0.02)
        assert amounts(0, 100, 4, 20.0, False, rng)[:3].min() >= 20
        assert amounts(0, 103, 4, 4.0, True, rng).tolist() == [25, 25, 25, 28]
        assert amounts(0, 9, 1, 4.0, False, rng).tolist() == [9]

    def test_a_class_with_too_few_rows_is_refused(self):
        for rows, clients, balanced in ((3, 4, True), (7, 4, False)):
            with pytest.raises(DataError, match=f"class 5 has {rows} rows for {clients} clients"):
                amounts(5, rows, clients, 1.0, balanced, np.random.default_rng(0))

    @pytest.mark.parametrize("seed", range(2))
    def test_practical_clients_have_the_least_size_and_full_ones_get_no_later_class(self, seed):
        counts = _built("pfllib-practical", seed=seed)[1]
        assert counts.sum(axis=1).min() >= 40
        before = np.cumsum(counts, axis=1) - counts
        assert (before >= 200).any()
        assert counts[before >= 200].max() == 0

    def test_the_least_size_is_at_most_half_the_mean(self):
        """50 clients of 4,000 rows have 80 on average, and 40 are required; 80 clients have 50, and 25 are required."""
        smallest = {n: _built("pfllib-practical", n, alpha=2.0)[1].sum(axis=1).min() for n in (50, 80)}
        assert smallest[50] >= 40 > smallest[80] >= 25

    def test_the_federation_is_cached_with_its_pooled_dataset(self, tmp_path):
        chosen = settings(partitioner="pfllib-pathological", num_clients=5, cache_dir=str(tmp_path))
        (first, pooled), (second, _) = federate(chosen), federate(chosen.model_copy(update={"rounds": 1}))
        assert len(pooled.train) == 1797
        assert pooled.test is None
        assert fingerprint_of_federation(first) == fingerprint_of_federation(second)
        examples = simulated(first, pooled, 4)
        assert set(examples.train.y.tolist()) == set(examples.test.y.tolist()) == {8, 9}
        table = of_federation(first, pooled, (1437, 360))
        assert table.pooled
        table.check()


class TestDirichletShares:
    def test_shares_are_those_of_the_dirichlet_distribution(self):
        """With one class nobody is full before it is dealt: Var(share) = (1/n)(1 − 1/n) / (nα + 1)."""
        rng, n, alpha = np.random.default_rng(1), 5, 0.7
        drawn = [dirichlet_counts(np.array([10_000]), [np.arange(n)], n, alpha, 0, rng, "x")[0] for _ in range(4000)]
        shares = np.stack(drawn) / 10_000
        assert shares.mean(axis=0) == pytest.approx(0.2, abs=0.012)
        assert shares.var() == pytest.approx(0.2 * 0.8 / (n * alpha + 1), rel=0.05)

    def test_a_class_goes_to_its_owners_alone(self):
        counts = dirichlet_counts(
            np.array([50, 50]), [np.array([0, 2]), np.array([1])], 3, 1.0, 0, np.random.default_rng(0), "x"
        )
        assert counts[0, 1] == counts[1, 0] == counts[1, 2] == 0
        assert counts.sum(axis=1).tolist() == [50, 50]

    def test_a_class_whose_owners_are_all_full_is_divided_among_them(self):
        """Client 0 is full after the first class, and the only owner of the second."""
        only = [np.array([0])] * 2
        counts = dirichlet_counts(np.array([60, 40]), only, 2, 1.0, 0, np.random.default_rng(0), "x")
        assert counts.tolist() == [[60, 0], [40, 0]]

    def test_a_cut_by_hand(self):
        assert cut(10, np.array([0.25, 0.25, 0.5])).tolist() == [2, 3, 5]  # ends 2.5 and 5 are rounded down
        assert cut(3, np.array([1.0, 0.0])).tolist() == [3, 0]
        assert cut(7, np.full(3, 1 / 3)).sum() == 7


class TestExtendedDirichlet:
    def test_clients_hold_at_most_their_number_of_classes(self):
        federation, counts = _built("extended-dirichlet", classes=3)
        assert (counts > 0).sum(axis=1).max() <= 3
        assert np.bincount(federation.train.rows).tolist() == [1] * 3000
        assert counts.sum(axis=1).min() >= 10

    def test_classes_are_drawn_uniformly(self):
        """Each of 10 classes goes to 2 / 10 of 4,000 clients: 800, with a standard deviation of 25."""
        holders = draw_holders(4000, 10, 2, np.random.default_rng(0))
        assert sum(map(len, holders)) == 8000
        assert all(abs(len(own) - 800) < 100 for own in holders)

    def test_every_class_has_clients(self):
        """10 clients with one of 5 classes: at least one each; 12 with 4 of 6 classes: ⌊8 / 5⌋; 20 with 3 of 6: 2."""
        for n, classes, each, least in ((10, 5, 1, 1), (12, 6, 4, 1), (20, 6, 3, 2)):
            for seed in range(20):
                assert min(map(len, draw_holders(n, classes, each, np.random.default_rng(seed)))) >= least

    def test_clients_that_cannot_hold_every_class_by_chance_are_refused(self, monkeypatch):
        """40 clients with one of 40 classes each hold all with probability 40! / 40⁴⁰ = 7 · 10⁻¹⁷."""
        monkeypatch.setattr(extended_dirichlet, "ATTEMPTS", 20)
        with pytest.raises(DataError, match="some class had fewer than 1 clients in each of 20 draws"):
            draw_holders(40, 40, 1, np.random.default_rng(0))

    def test_all_classes_and_a_large_alpha_are_iid(self):
        counts = _built("extended-dirichlet", classes=0, alpha=1e9)[1]
        assert np.abs(counts - 15).max() <= 1


class TestNiidBench:
    def test_pathological_is_its_label_quantity_skew(self):
        """#C = 2: client i holds class i mod C and one more; each class is divided equally among its clients."""
        counts = _built("pathological", classes=2)[1]
        assert all(counts[client, client % CLASSES] for client in range(20))
        assert ((counts > 0).sum(axis=1) == 2).all()
        assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)
        assert counts.sum() == 3000

    @pytest.mark.parametrize("seed", range(2))
    def test_extended_dirichlet_with_all_classes_is_its_label_skew(self, seed):
        counts = _built("extended-dirichlet", clients=10, seed=seed, classes=0, alpha=0.5)[1]
        before = np.cumsum(counts, axis=1) - counts
        assert counts[before >= 300].max(initial=0) == 0
        assert counts.sum(axis=1).min() >= 10
        assert (counts > 0).sum(axis=1).max() > 5

    def test_sizes_are_dirichlet_and_class_mixes_are_equal(self):
        """Var(q) = (1/n)(1 − 1/n) / (nα + 1) with n = 5 and α = 5; the smallest size is 10."""
        rng = np.random.default_rng(0)
        sizes = np.stack([draw_sizes(3000, 5, 5.0, 10, rng) for _ in range(2000)])
        assert (sizes.sum(axis=1) == 3000).all()
        assert (sizes / 3000).var() == pytest.approx(0.16 / 26, rel=0.06)
        federation, counts = _built("quantity-skew", 10)
        assert federation.train.sizes.min() >= 10
        largest = counts[counts.sum(axis=1).argmax()]
        assert np.abs(largest / largest.sum() - 0.1).max() < 0.03


class TestNoise:
    def test_levels_grow_with_the_client(self):
        noise = _built("noise", clients=4, sigma=0.2)[0].noise
        assert noise.levels == pytest.approx([0.05, 0.1, 0.15, 0.2])

    def test_training_and_test_images_have_noise_of_the_clients_level(self, tmp_path):
        chosen = settings(partitioner="noise", num_clients=3, cache_dir=str(tmp_path), **{"noise.sigma": 0.3})
        federation, dataset = federate(chosen)
        for client, level in enumerate((0.1, 0.2, 0.3)):
            for part, split, rows in (
                ("train", dataset.train, federation.train[client]),
                ("test", dataset.test, federation.test[client]),
            ):
                noise = (decoded(federation, dataset, client, part)[0] - split.x[rows]) / 16  # digits: 0..16
                assert kstest(noise.ravel() / level, "norm").pvalue > 1e-3
        seed, rows = federation.noise.seed, federation.test[1]
        expected = add_noise(dataset.test.x[rows], 16 * 0.2, seed, rows, 1)  # not the noise of these rows in training
        np.testing.assert_allclose(decoded(federation, dataset, 1, "test")[0], expected, rtol=1e-5, atol=1e-3)
        x = simulated(federation, dataset, 2).train.x
        assert x.dtype == torch.float32
        assert torch.equal(x, simulated(federation, dataset, 2).train.x)

    def test_an_images_noise_depends_on_seed_split_and_row_alone(self):
        images = np.zeros((3, 4, 4, 1), np.uint8)
        noisy = add_noise(images, 1.0, 7, np.array([5, 6, 5]), 0)
        assert (noisy[0] == noisy[2]).all()
        others = [add_noise(images[:1], 1.0, seed, np.array([row]), split) for seed, row, split in
                  ((7, 6, 0), (7, 5, 1), (8, 5, 0))]  # fmt: skip
        assert (others[0][0] == noisy[1]).all()
        assert all((other[0] != noisy[0]).all() for other in others)
        assert (images == 0).all()

    def test_level_zero_changes_nothing(self):
        images = numpy_generator(1, "pictures").integers(0, 256, (2, 3, 3, 1), dtype=np.uint8)
        assert (add_noise(images, 0.0, 1, np.arange(2), 0) == images).all()

    def test_canaries_have_the_noise_of_their_rows(self):
        federation = _built("noise", clients=4, sigma=0.2)[0]
        dataset, rows = _dataset(), federation.train[1][3:5]
        x = decoded(federation, dataset, 1, "train")[0]
        again = as_seen(federation, dataset.spec, 1, np.asarray(dataset.train.x[rows]), rows, test_split=False)
        assert (again == x[3:5]).all()

    def test_noise_is_a_share_of_the_largest_pixel_value(self):
        federation = _built("noise", clients=4, sigma=0.2)[0]
        black, rows = np.zeros((100, 4, 4, 1), np.uint8), np.arange(100)
        for name, largest in (("digits", 16), ("mnist", 255)):
            x = as_seen(federation, DATASETS[name], 1, black, rows, test_split=False)
            assert x.std() == pytest.approx(0.1 * largest, rel=0.1)

    def test_federations_without_noise_keep_their_hash(self):
        """The hash of a run's federation must not change with a field that says nothing of it."""
        plain, noisy = _built("iid", clients=4)[0], _built("noise", clients=4)[0]
        names = [field.name for field in dataclasses.fields(plain) if getattr(plain, field.name) is not None]
        assert "noise" not in names
        assert fingerprint_of_federation(plain) != fingerprint_of_federation(
            dataclasses.replace(plain, noise=noisy.noise)
        )

    def test_it_is_refused_where_it_cannot_be_kept(self, tmp_path):
        federation, dataset = _built("noise", clients=4)[0], _dataset()
        with pytest.raises(ConfigurationError, match="images with noise, which a split does not hold"):
            of_federation(federation, dataset, (3000, 1000))
        with pytest.raises(DataError, match="whole numbers of 0 to 255"):
            write_device(federation, dataset, 0, tmp_path)
        table = dataclasses.replace(dataset, spec=dataclasses.replace(dataset.spec, kind="numbers"))
        with pytest.raises(ConfigurationError, match="partitioner: 'noise' changes images, but 'digits' has none"):
            build(FederationSettings(partitioner="noise", num_clients=4, dataset="made"), table)


class TestTestRows:
    """``check_apart``: whatever deals test rows, one example is tested once, and is no training example."""

    @pytest.mark.parametrize(
        ("tests", "from_train", "row"),
        [([[2], [3]], False, None), ([[2], [2]], False, 2), ([[5], [6]], True, None), ([[5], [1]], True, 1)],
    )
    def test_a_row_with_two_uses_is_refused(self, tests, from_train, row):
        train, test = (Shares.of([np.array(rows) for rows in parts]) for parts in ([[0, 1], [2]], tests))
        dealt = Dealt(train, test, ["", ""], from_train, np.zeros(0, np.int64))
        chosen = FederationSettings(partitioner="iid", num_clients=2)
        if row is None:
            check_apart(chosen, dealt)
        else:
            with pytest.raises(DataError, match=f"partitioner 'iid': row {row} would be a test example and also"):
                check_apart(chosen, dealt)
