"""Tests of partitions.federation: who holds what, matched test rows, unseen and unlabeled clients, the cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

import florilegium.partitions.federation
from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.federation import _federate, build, federate
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Shares
from florilegium.partitions.spec import Dataset, Split
from tests.partitions.made import write
from tests.support import settings

KINDS = {
    "iid": {"partitioner": "iid"},
    "random classes": {"partitioner": "classes", "classes_per_client": "2-4", "class_assignment": "random"},
    "even classes": {"partitioner": "classes", "classes_per_client": 3, "class_assignment": "even"},
    "dirichlet": {"partitioner": "dirichlet", "alpha": 0.5},
    "balanced dirichlet": {"partitioner": "dirichlet", "alpha": 0.5, "balanced": True},
    "rotation": {"partitioner": "rotation"},
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def _dataset(train: list[int], test: list[int] | None = None, **clients: list[str]) -> Dataset:
    """Return images that nobody looks at, with the given numbers of training and test rows of each class."""

    def split(counts, names):
        y = np.random.default_rng(sum(counts)).permutation(np.repeat(np.arange(len(counts)), counts))
        return Split(np.zeros((len(y), 8, 8, 1), np.uint8), y, {c: np.array(v) for c, v in names.items()})

    spec = dataclasses.replace(DATASETS["digits"], classes=len(train), client_columns=tuple(clients))
    return Dataset(spec, split(train, clients), None if test is None else split(test, {}), "made here")


def _fields(federation) -> dict[str, list]:
    return {
        "train": federation.train.rows.tolist(),
        "train offsets": federation.train.offsets.tolist(),
        "test": federation.test.rows.tolist(),
        "test offsets": federation.test.offsets.tolist(),
        "held back": federation.test_from_train,
        "unseen": federation.unseen.tolist(),
        "labeled": federation.labeled.tolist(),
        "angles": federation.angles.tolist(),
        "names": federation.names.tolist(),
    }


class TestShares:
    @given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6))
    def test_lists_come_back(self, parts):
        shares = Shares.of([np.array(part, np.int64) for part in parts])
        assert [shares[i].tolist() for i in range(len(parts))] == parts
        assert shares.sizes.tolist() == [len(part) for part in parts]
        assert [part.tolist() for part in shares] == parts
        assert shares.owners.tolist() == [client for client, part in enumerate(parts) for _ in part]
        assert [part.tolist() for part in shares.ordered()] == [sorted(part) for part in parts]
        assert [part.tolist() for part in Shares.joined([shares, shares])] == parts * 2

    @given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=5), st.integers(0, 5)), max_size=6))
    def test_cut_in_two(self, pairs):
        counts = [min(count, len(part)) for part, count in pairs]
        shares = Shares.of([np.array(part, np.int64) for part, _ in pairs])
        first, rest = shares.cut(np.array(counts, np.int64))
        expected = [(part[:count], part[count:]) for (part, _), count in zip(pairs, counts, strict=True)]
        assert [(a.tolist(), b.tolist()) for a, b in zip(first, rest, strict=True)] == expected


class TestTrainingRows:
    @every_kind
    def test_every_row_has_exactly_one_owner(self, kind):
        federation = build(settings(num_clients=12, **kind), _dataset([40] * 10, [10] * 10))
        rows = federation.train.rows
        assert len(set(rows.tolist())) == len(rows)
        owned = np.flatnonzero(federation.class_counts(_dataset([40] * 10, [10] * 10)).sum(axis=0))
        assert len(rows) == 40 * len(owned)
        assert len(owned) == 10 or kind["partitioner"] == "classes"  # random classes may leave one without owner

    @pytest.mark.parametrize("partitioner", ["iid", "rotation"])
    def test_iid_sizes_differ_by_at_most_one(self, partitioner):
        federation = build(settings(num_clients=7, partitioner=partitioner), _dataset([20] * 5, [5] * 5))
        assert sorted(federation.train.sizes) == [14] * 5 + [15] * 2

    def test_iid_clients_do_not_differ_in_their_class_mix(self):
        """χ² test of independence between client and class on 5,000 rows, at the level 10⁻³."""
        dataset = _dataset([500] * 10, [10] * 10)
        counts = build(settings(num_clients=10, partitioner="iid"), dataset).class_counts(dataset)
        assert chi2_contingency(counts).pvalue > 1e-3
        assert counts.min() < counts.max()

    @every_kind
    def test_samples_per_client_are_exact(self, kind):
        if kind["partitioner"] == "dirichlet":
            kind = {**kind, "alpha": 50.0}
        dataset = _dataset([40] * 10, [10] * 10)
        federation = build(settings(num_clients=8, samples_per_client=15, **kind), dataset)
        if kind["partitioner"] == "dirichlet":  # whose sizes differ
            assert len(federation.train.rows) == 8 * 15
        else:
            assert federation.train.sizes.tolist() == [15] * 8
        assert len(set(federation.train.rows.tolist())) == 8 * 15

    def test_class_counts_by_hand(self):
        dataset = _dataset([4, 4], [2, 2])
        federation = build(settings(num_clients=2, partitioner="iid"), dataset)
        for part, split, shares in (
            ("train", dataset.train, federation.train), ("test", dataset.test, federation.test)
        ):  # fmt: skip
            counts = federation.class_counts(dataset, part)
            assert counts.shape == (2, 2)
            for client in range(2):
                labels = split.y[shares[client]].tolist()
                assert counts[client].tolist() == [labels.count(0), labels.count(1)]


def _assert_matched(federation, dataset) -> None:
    """Of each class a client has t·c test rows for c training rows, with the largest t ≤ 1 that there are rows for."""
    demand, got = federation.class_counts(dataset, "train"), federation.class_counts(dataset, "test")
    supply, wanted = np.bincount(dataset.test.y, minlength=demand.shape[1]), demand.sum(axis=0)
    t = min([1.0, *(supply[wanted > 0] / wanted[wanted > 0])])
    assert np.abs(got - t * demand).max() < 1 + 1e-9
    assert (got.sum(axis=0) <= supply).all()
    assert np.abs(got.sum(axis=0) - t * wanted).max() < 1 + 1e-9  # what rounding left over goes to someone
    rows = federation.test.rows
    assert len(set(rows.tolist())) == len(rows)


class TestTestRows:
    @every_kind
    def test_follow_the_clients_own_class_mix(self, kind):
        federation, dataset = federate(settings(num_clients=15, **kind))
        _assert_matched(federation, dataset)
        assert not federation.test_from_train

    @hypothesis_settings(max_examples=40)
    @given(
        st.integers(1, 6),
        st.lists(st.tuples(st.integers(6, 30), st.integers(1, 30)), min_size=1, max_size=5),
        st.sampled_from(["iid", "classes"]),
    )
    def test_follow_it_whatever_the_test_split_holds(self, n, sizes, partitioner):
        dataset = _dataset([a for a, _ in sizes], [b for _, b in sizes])
        chosen = settings(num_clients=n, partitioner=partitioner, classes_per_client=1)
        _assert_matched(build(chosen, dataset), dataset)

    def test_are_as_many_as_training_rows_where_there_are_enough(self):
        dataset = _dataset([40] * 4, [40] * 4)
        federation = build(settings(num_clients=4, classes_per_client=2, samples_per_client=10), dataset)
        counts = [federation.class_counts(dataset, part) for part in ("train", "test")]
        np.testing.assert_array_equal(*counts)

    def test_all_of_the_scarcest_class_are_used(self):
        """Training rows 30 + 30, test rows 20 + 5: t = 5/30, so all 5 of the second and 5 of the first class."""
        dataset = _dataset([30, 30], [20, 5])
        federation = build(settings(num_clients=3, partitioner="iid"), dataset)
        assert federation.class_counts(dataset, "test").sum(axis=0).tolist() == [5, 5]

    def test_a_class_without_test_rows_does_not_cost_the_other_classes_theirs(self):
        dataset = _dataset([30, 30, 1], [20, 20, 0])
        federation = build(settings(num_clients=3, partitioner="iid"), dataset)
        assert (federation.class_counts(dataset, "test")[:, :2] > 0).all()

    def test_are_drawn_at_random(self):
        dataset = _dataset([30], [30])
        rows = build(settings(num_clients=1, partitioner="iid", samples_per_client=5), dataset).test.rows
        assert rows.tolist() != np.arange(30)[:5].tolist()

    @every_kind
    def test_without_a_test_split_a_fifth_of_the_training_rows_is_held_back(self, kind):
        dataset = _dataset([40] * 10)
        federation = build(settings(num_clients=8, **kind), dataset)
        assert federation.test_from_train
        train, test = set(federation.train.rows.tolist()), set(federation.test.rows.tolist())
        assert not train & test
        assert len(train) == len(federation.train.rows)
        assert len(test) == len(federation.test.rows) > 0
        assert len(test) <= 0.2 * 400
        if len(np.unique(dataset.train.y[list(train)])) == 10 and kind["partitioner"] != "classes":
            assert len(train) == 0.8 * 400


class TestGroups:
    @pytest.mark.parametrize(("n", "fraction", "count"), [(10, 0.0, 0), (10, 0.2, 2), (7, 0.3, 2), (10, 0.9, 9)])
    def test_unseen_clients_are_the_fraction_of_all(self, n, fraction, count):
        chosen = settings(num_clients=n, partitioner="iid", unseen_fraction=fraction)
        assert build(chosen, _dataset([20] * 5, [5] * 5)).unseen.sum() == count

    @pytest.mark.parametrize(
        ("unseen", "fraction", "count"), [(0.0, 1.0, 10), (0.0, 0.3, 3), (0.5, 0.4, 2), (0.0, 0.001, 1), (0.5, 1.0, 5)]
    )
    def test_labeled_clients_are_the_fraction_of_the_seen_ones_at_least_one(self, unseen, fraction, count):
        chosen = settings(num_clients=10, partitioner="iid", unseen_fraction=unseen, labeled_fraction=fraction)
        federation = build(chosen, _dataset([20] * 5, [5] * 5))
        assert federation.labeled[~federation.unseen].sum() == count
        assert federation.labeled[federation.unseen].all()

    def test_groups_are_drawn_at_random(self):
        dataset = _dataset([20] * 5, [5] * 5)
        drawn = [
            build(settings(num_clients=20, partitioner="iid", unseen_fraction=0.5, seed=seed), dataset).unseen
            for seed in range(3)
        ]
        assert len({tuple(unseen) for unseen in drawn}) == 3
        assert all(unseen.sum() == 10 for unseen in drawn)

    def test_only_rotation_has_angles(self):
        dataset = _dataset([20] * 5, [5] * 5)
        turned = build(settings(num_clients=20, partitioner="rotation", angles="10,20"), dataset)
        assert set(turned.angles.tolist()) == {10.0, 20.0}
        plain = build(settings(num_clients=20, partitioner="iid", angles="10,20"), dataset)
        assert plain.angles.tolist() == [0.0] * 20

    def test_only_natural_clients_have_names(self):
        assert build(settings(num_clients=3, partitioner="iid"), _dataset([20], [5])).names.tolist() == ["", "", ""]


class TestDeterminism:
    @every_kind
    def test_settings_and_seed_alone_decide(self, kind):
        dataset = _dataset([40] * 10, [10] * 10)
        chosen = {"num_clients": 8, "unseen_fraction": 0.25, "labeled_fraction": 0.5, **kind}
        first = _fields(build(settings(**chosen), dataset))
        np.random.default_rng(0).random(5)
        assert _fields(build(settings(**chosen), dataset)) == first
        other = _fields(build(settings(seed=2, **chosen), dataset))
        assert other["train"] != first["train"]
        assert other["test"] != first["test"]

    @pytest.mark.parametrize("name", ["random classes", "even classes", "dirichlet"])
    def test_the_seed_decides_class_mixes_too_not_only_rows(self, name):
        dataset = _dataset([40] * 10, [10] * 10)
        mixes = [
            build(settings(num_clients=8, seed=seed, **KINDS[name]), dataset).class_counts(dataset) for seed in (1, 2)
        ]
        assert ((mixes[0] > 5) != (mixes[1] > 5)).any()

    def test_keys_of_the_server_do_not_matter(self):
        one, _ = federate(settings(num_clients=5, rounds=3, learning_rate=0.3))
        other, _ = federate(settings(num_clients=5, rounds=9, learning_rate=0.1))
        assert _fields(one) == _fields(other)


class TestCache:
    def test_the_stored_federation_is_the_one_that_was_built(self, tmp_path, monkeypatch):
        chosen = settings(
            num_clients=6, partitioner="rotation", unseen_fraction=0.3, labeled_fraction=0.5, cache_dir=str(tmp_path)
        )
        first, dataset = federate(chosen)
        assert _fields(first) == _fields(build(chosen, dataset))
        _federate.cache_clear()  # as another process would find it
        monkeypatch.setattr(florilegium.partitions.federation, "_build", None)  # cannot be built again
        again, _ = federate(chosen)
        assert _fields(again) == _fields(first)

    def test_natural_names_are_stored_too(self, tmp_path):
        write(tmp_path, "femnist", train=40)
        chosen = settings(
            dataset="femnist", data_dir=str(tmp_path), cache_dir=str(tmp_path), partitioner="natural", num_clients=0
        )
        first, _ = federate(chosen)
        _federate.cache_clear()
        assert _fields(federate(chosen)[0]) == _fields(first)
        assert first.names.tolist() == ["f0000_00", "f0001_00", "f0002_00", "f0003_00"]

    def test_another_cache_gives_the_same_federation(self, tmp_path):
        one, _ = federate(settings(num_clients=5, cache_dir=str(tmp_path / "one")))
        other, _ = federate(settings(num_clients=5, cache_dir=str(tmp_path / "other")))
        assert _fields(one) == _fields(other)

    def test_all_settings_of_a_run_and_those_of_the_federation_share_a_file(self, tmp_path):
        chosen = settings(num_clients=5, cache_dir=str(tmp_path))
        federate(chosen)
        part = FederationSettings(**{name: getattr(chosen, name) for name in FederationSettings.model_fields})
        federate(part)
        assert len(list(Path(tmp_path, "federations").glob("*.npz"))) == 1

    def test_changed_data_make_a_new_federation(self, tmp_path):
        chosen = {"dataset": "mnist", "data_dir": str(tmp_path), "cache_dir": str(tmp_path), "partitioner": "iid"}
        sizes = []
        for rows in (30, 40):
            write(tmp_path, "mnist", train=rows, test=10)
            _federate.cache_clear()
            sizes.append(len(federate(settings(num_clients=3, **chosen))[0].train.rows))
        assert sizes == [30, 40]


class TestFailure:
    def test_an_unknown_partitioner_names_the_nearest_and_all(self):
        wrong = settings().model_copy(update={"partitioner": "dirichlt"})
        with pytest.raises(ConfigurationError) as caught:
            federate(wrong)
        assert str(caught.value).startswith("partitioner: 'dirichlt' is not a partitioner; did you mean 'dirichlet'?")
        assert all(word in str(caught.value) for word in PARTITIONERS)

    def test_an_unknown_dataset_names_the_nearest(self):
        wrong = settings().model_copy(update={"dataset": "digit"})
        with pytest.raises(ConfigurationError, match=r"dataset: 'digit' is not a dataset; did you mean 'digits'\?"):
            federate(wrong)

    @every_kind
    def test_more_clients_than_examples_name_the_key_and_both_numbers(self, kind):
        with pytest.raises(DataError, match="num-clients: 51 clients cannot share 50 training examples of 'digits'"):
            build(settings(num_clients=51, **kind), _dataset([10] * 5, [5] * 5))

    @pytest.mark.parametrize("partitioner", ["iid", "rotation", "dirichlet"])
    def test_more_samples_than_there_are_name_the_key_and_both_numbers(self, partitioner):
        chosen = settings(num_clients=5, samples_per_client=11, partitioner=partitioner)
        with pytest.raises(DataError) as caught:
            build(chosen, _dataset([10] * 5, [5] * 5))
        message = str(caught.value)
        assert message.startswith("samples-per-client: 5 clients with 11 samples each need 55 training examples")
        assert message.endswith("'digits' has 50")

    def test_more_classes_than_there_are_name_the_key(self):
        chosen = settings(num_clients=5, partitioner="classes", classes_per_client=6)
        with pytest.raises(DataError, match=r"classes-per-client: .* 6 classes, the data have only 5"):
            build(chosen, _dataset([10] * 5, [5] * 5))

    @pytest.mark.filterwarnings("ignore:The specified min_partition_size")
    def test_a_dirichlet_draw_that_starves_clients_names_partitioner_and_remedy(self):
        chosen = settings(num_clients=25, partitioner="dirichlet", alpha=0.001)
        with pytest.raises(DataError) as caught:
            build(chosen, _dataset([10] * 5, [5] * 5))
        message = str(caught.value)
        assert message.startswith("partitioner 'dirichlet' cannot share 'digits' out over 25 clients")
        assert message.endswith("Use fewer clients, more samples, or (dirichlet) a larger alpha.")

    @pytest.mark.parametrize("fraction", [0.6, 0.9])
    def test_without_a_client_to_train_on_the_key_is_named(self, fraction):
        chosen = settings(num_clients=1, partitioner="iid", unseen_fraction=fraction)
        with pytest.raises(ConfigurationError, match="unseen-fraction: no client is left to train on"):
            build(chosen, _dataset([10], [5]))

    @pytest.mark.parametrize(("name", "rows"), [("shakespeare", 30), ("adult", 30)])
    def test_only_images_can_be_rotated(self, tmp_path, name, rows):
        write(tmp_path, name, train=rows)
        chosen = settings(dataset=name, data_dir=str(tmp_path), num_clients=3, partitioner="rotation")
        with pytest.raises(ConfigurationError, match=f"partitioner: 'rotation' changes images, but '{name}' has none"):
            federate(chosen)

    @every_kind
    def test_no_clients_at_all_name_the_key(self, kind):
        with pytest.raises((ConfigurationError, DataError), match="num-clients"):
            build(settings(num_clients=0, **kind), _dataset([10] * 5, [5] * 5))


class TestDomains:
    """Key domain-column: each domain's rows are shared out over clients of its own."""

    def _made(self) -> Dataset:
        generator = np.random.default_rng(0)

        def split(count: int) -> Split:
            y = generator.integers(3, size=count)
            kinds = np.array(["fog", "snow"])[(generator.random(count) < 0.3).astype(int)]
            return Split(np.zeros((count, 8, 8, 1), np.uint8), y, {"kind": kinds})

        spec = dataclasses.replace(DATASETS["digits"], classes=3, client_columns=("kind",))
        return Dataset(spec, split(600), split(200), "made here")

    @pytest.mark.parametrize("kind", ["iid", "dirichlet", "random classes"])
    def test_a_client_holds_rows_of_its_domain_alone(self, kind):
        made, keys = self._made(), KINDS[kind] | ({"classes_per_client": 2} if "classes" in kind else {})
        federation = build(settings(num_clients=6, domain_column="kind", **keys), made)
        assert federation.names.tolist() == ["fog"] * 3 + ["snow"] * 3
        assert not federation.test_from_train
        for client, name in enumerate(federation.names):
            for split, rows in ((made.train, federation.train[client]), (made.test, federation.test[client])):
                assert len(rows)
                assert set(split.clients["kind"][rows]) == {name}
            assert set(made.test.y[federation.test[client]]) <= set(made.train.y[federation.train[client]])
        if kind != "random classes":
            assert sorted(federation.train.rows) == list(range(600))

    def test_domains_are_shared_out_apart_from_each_other(self):
        """Equal rows in two domains: their clients have different mixes all the same."""
        y = np.tile(np.arange(3), 200)
        kinds = np.repeat(["a", "b"], 300)
        split = Split(np.zeros((600, 8, 8, 1), np.uint8), y, {"kind": kinds})
        spec = dataclasses.replace(DATASETS["digits"], classes=3, client_columns=("kind",))
        made = Dataset(spec, split, split, "made here")
        federation = build(settings(num_clients=6, domain_column="kind", partitioner="dirichlet", alpha=0.5), made)
        counts = federation.class_counts(made)
        assert (counts[:3].sum(axis=0) == counts[3:].sum(axis=0)).all()
        assert (counts[:3] != counts[3:]).any()

    def test_what_is_lacking_is_named_with_its_domain(self):
        made = self._made()
        keys = {"num_clients": 6, "domain_column": "kind", "partitioner": "iid"}
        with pytest.raises(DataError, match="domain 'snow': num-clients: 300 clients cannot share"):
            build(settings(**keys | {"num_clients": 600}), made)
        nameless = dataclasses.replace(made, test=dataclasses.replace(made.test, clients={}))
        with pytest.raises(ConfigurationError, match=r"the test rows of .* have no column 'kind'"):
            build(settings(**keys), nameless)
        foggy = made.test.clients["kind"] == "fog"
        half = Split(made.test.x[foggy], made.test.y[foggy], {"kind": made.test.clients["kind"][foggy]})
        with pytest.raises(DataError, match=r"domain 'snow' .* has no test rows"):
            build(settings(**keys), dataclasses.replace(made, test=half))

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"num_clients": 5}, "num-clients: 5 clients cannot be split evenly over the 2 domains.*fog, snow"),
            ({"num_clients": 0}, "num-clients: 0 clients cannot be split evenly"),
            ({"domain_column": "kinds"}, "domain-column: the training rows .* no column 'kinds'.*did you mean 'kind'"),
            ({"partitioner": "natural", "num_clients": 0}, "domain-column: natural clients are not dealt out"),
        ],
    )
    def test_what_is_refused(self, keys, message):
        with pytest.raises(ConfigurationError, match=message):
            build(settings(**{"num_clients": 6, "domain_column": "kind", "partitioner": "iid"} | keys), self._made())
