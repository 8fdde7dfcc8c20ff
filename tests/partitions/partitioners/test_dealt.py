"""Every partitioner with keys of its own: who may hold which rows, what its keys do, and what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.federation import build
from florilegium.partitions.partitioners import dirichlet_shares
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation
from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.spec import Dataset, Split
from tests.support import CACHE

CLASSES = 4


def _settings(partitioner: str, seed: int = 1, own: dict[str, Any] | None = None, **common: Any) -> FederationSettings:
    section = PARTITIONERS[partitioner].section()
    keys = {
        "num_clients": 8,
        "classes_per_client": 2,
        "dataset": "made",
        "seed": seed,
        "cache_dir": str(CACHE),
    } | common
    return FederationSettings(partitioner=partitioner, own=section(**(own or {})), **keys)


def _dataset(counts: tuple[int, ...] = (30, 30, 30, 30), tests: int = 40, task: str = "") -> Dataset:
    generator = np.random.default_rng(0)

    def split(y: np.ndarray) -> Split:
        names = {
            "client": np.array([f"u{i % 12:02d}" for i in range(len(y))]),
            "age": (np.arange(len(y)) % 50).astype(str),
        }
        return Split(np.zeros((len(y), 2, 2, 1), np.uint8), y, names)

    y = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    test = generator.integers(len(counts), size=tests)
    spec = dataclasses.replace(DATASETS["digits"], classes=len(counts), client_columns=("client", "age"))
    if task == "regression":
        spec = dataclasses.replace(spec, task="regression", classes=0)
        y, test = generator.normal(size=len(y)).astype(np.float32), generator.normal(size=tests).astype(np.float32)
    return Dataset(spec, split(y), split(test), f"made here of {len(y)} and {tests}").read_by()


def _owners(federation: Federation, rows: int) -> np.ndarray:
    """Return the number of owners of each training row; a client that holds a row twice fails here."""
    for client in range(len(federation)):
        own = federation.train[client]
        assert len(set(own.tolist())) == len(own) > 0
    return np.bincount(federation.train.rows, minlength=rows)


OWN: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "shard": st.fixed_dictionaries(
        {"per_client": st.integers(0, 3), "size": st.integers(0, 9), "keep_incomplete": st.booleans()}
    ),
    "size": st.fixed_dictionaries({"sizes": st.sampled_from(["", "1", "7", "15", "16", "1,2,3,4,5,6,7,8"])}),
    "inner-dirichlet": st.fixed_dictionaries(
        {"sizes": st.sampled_from(["", "1", "15", "1,2,3,4,5,6,7,8"]), "alpha": st.sampled_from([1e-6, 0.1, 1e6])}
    ),
    "distribution": st.fixed_dictionaries(
        {"sigma": st.sampled_from([0.0, 2.0, 30.0]), "classes": st.integers(1, 5), "preassigned": st.integers(0, 12)}
    ),
    "pathological": st.fixed_dictionaries(
        {
            "classes": st.integers(1, 5),
            "assignment": st.sampled_from(["random", "deterministic", "first-deterministic"]),
        }
    ),
    "continuous": st.fixed_dictionaries(
        {"strictness": st.sampled_from([0.0, 0.5, 1.0]), "by": st.sampled_from(["", "age"])}
    ),
    "pfllib-pathological": st.fixed_dictionaries({"classes": st.integers(1, 5), "balanced": st.booleans()}),
    "pfllib-practical": st.fixed_dictionaries(
        {"alpha": st.sampled_from([1e-300, 0.1, 1e9]), "min_examples": st.sampled_from([2, 40])}
    ),
    "extended-dirichlet": st.fixed_dictionaries(
        {
            "classes": st.integers(0, 5),
            "alpha": st.sampled_from([1e-300, 0.1, 1e9]),
            "min_examples": st.sampled_from([1, 10]),
        }
    ),
    "quantity-skew": st.fixed_dictionaries(
        {"alpha": st.sampled_from([1e-300, 0.1, 1e9]), "min_examples": st.sampled_from([1, 10])}
    ),
    "noise": st.fixed_dictionaries({"sigma": st.sampled_from([0.0, 0.1, 100.0])}),
    "grouped-natural": st.fixed_dictionaries(
        {
            "group_size": st.integers(1, 20),
            "mode": st.sampled_from(["allow-smaller", "allow-bigger", "drop-remainder", "strict"]),
            "sort": st.booleans(),
        }
    ),
}
DEALT = [name for name in PARTITIONERS.own if name not in ("mdm", "file")]
ALL_ROWS = (
    "iid", "dirichlet", "rotation", "linear", "square", "exponential", "continuous", "natural", "pfllib-pathological",
    "pfllib-practical", "extended-dirichlet", "quantity-skew", "noise",
)  # fmt: skip


CLIENTS = [1, 4, 8, 40, 120]
COUNTS = [(30, 50, 40, 0), (1, 1, 1, 1), (120, 0, 0, 0), (1, 117, 1, 1), (2,) * 60, (40, 40, 40, 40)]
"""Training rows of each class; the last class may have none, or a class one row."""


def _dealt(name: str, data: st.DataObject) -> None:
    """Divide drawn rows with drawn keys, and check who holds them, or that the refusal is one in words."""
    partitioning = PARTITIONERS[name]
    own = data.draw(OWN.get(name, st.just({})))
    common: dict[str, Any] = {
        "num_clients": data.draw(st.sampled_from([0, 3, 12] if partitioning.natural else CLIENTS))
    }
    common["alpha"] = data.draw(st.sampled_from([1e-300, 1e-3, 0.5, 1e9]))
    common["samples_per_client"] = data.draw(st.sampled_from([0, 0, 0, 1, 3, 10]))
    common["classes_per_client"] = data.draw(st.sampled_from([1, 2, "1-4"]))
    if name == "dirichlet":
        common["dirichlet_over"] = data.draw(st.sampled_from(["clients", "classes"]))
        common["balanced"] = data.draw(st.booleans())
    dataset = _dataset(data.draw(st.sampled_from(COUNTS)), data.draw(st.sampled_from([0, 1, 40])))
    if not len(dataset.test or ()):
        dataset = dataclasses.replace(dataset, test=None, fingerprint=f"{dataset.fingerprint}, no tests")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dirichlet_shares, "ATTEMPTS", 50)  # a draw that cannot succeed ends sooner
            federation = build(_settings(name, data.draw(st.integers(0, 3)), own, **common), dataset)
    except (ConfigurationError, DataError):
        return
    assert len(federation) == common["num_clients"] or (partitioning.natural and not common["num_clients"])
    _check_rows(name, dataset, federation, common)


def _check_rows(name: str, dataset: Dataset, federation: Federation, common: dict[str, Any]) -> None:
    """Check that each row that should be dealt has one owner, or is one client's test row."""
    partitioning, whole = PARTITIONERS[name], len(dataset.train)
    if partitioning.held_out:  # the test rows are dealt together with the training rows
        whole += len(dataset.test or ())
    trained = _owners(federation, whole)
    tested = np.bincount(federation.test.rows, minlength=whole)
    assert tested.max() <= 1
    if federation.test_from_train:
        assert not (trained.astype(bool) & tested.astype(bool)).any()
    chosen = common["samples_per_client"] > 0 or (partitioning.natural and common["num_clients"] > 0)
    if partitioning.rows != "shared" or not chosen:
        assert trained.max() <= 1
    if name in ALL_ROWS and not chosen:
        held = tested if federation.test_from_train else np.zeros(whole, int)
        assert (trained + held).min() == 1 or not (partitioning.natural or partitioning.held_out)
        assert trained.sum() == whole - (
            held.sum() if partitioning.held_out or partitioning.natural else _kept(dataset)
        )
    if not (partitioning.natural or partitioning.held_out):
        _check_tests(dataset, federation)


def _kept(dataset: Dataset) -> int:
    """Return how many training rows are kept back for tests: a fifth if there is no test split."""
    return 0 if dataset.test is not None else len(dataset.train) // 5


def _check_tests(dataset: Dataset, federation: Federation) -> None:
    """Check that test rows follow the clients' classes as docs/architecture.md, "Data", says."""
    split = dataset.train if dataset.test is None else dataset.test
    pool = np.bincount(split.y, minlength=dataset.spec.classes) if dataset.test is not None else None
    wanted, given = federation.class_counts(dataset), federation.class_counts(dataset, "test")
    assert (given <= wanted + 1).all()
    assert not given[wanted == 0].any()
    if pool is not None:
        total = wanted.sum(axis=0)
        common = (total >= 0.001 * total.sum()) & (pool > 0)
        t = min([1.0, *(pool[common] / total[common])])
        assert given.sum(axis=0).tolist() == np.floor(np.minimum(t * total, pool) + 1e-9).astype(int).tolist()


@pytest.mark.filterwarnings("ignore")  # flwr-datasets warns of what the settings ask for
@pytest.mark.parametrize("name", DEALT)
@hypothesis_settings(max_examples=10)
@given(data=st.data())
def test_every_row_has_one_owner_or_there_is_an_error(name: str, data: st.DataObject) -> None:
    _dealt(name, data)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DEALT)
@hypothesis_settings(max_examples=400)
@given(data=st.data())
def test_every_row_has_one_owner_whatever_the_keys(name: str, data: st.DataObject) -> None:
    _dealt(name, data)


def test_no_class_is_lost_when_no_client_draws_much_of_it() -> None:
    dataset, dealt = _dataset((30,) * 10), 0
    for seed in range(1, 21):
        keys = {"num_clients": 10, "dirichlet_over": "classes", "alpha": 0.001, "seed": seed}
        with contextlib.suppress(DataError):
            federation = build(_settings("dirichlet", **keys), dataset)
            assert federation.class_counts(dataset).sum(axis=0).tolist() == [30] * 10
            dealt += 1
    assert dealt


@pytest.mark.parametrize("name", [name for name in DEALT if name not in ("natural", "linear", "square", "exponential")])
def test_the_seed_decides(name: str) -> None:
    common = {"num_clients": 0} if PARTITIONERS[name].natural else {}
    own = {"alpha": 5.0} if name == "quantity-skew" else {}
    rows = [build(_settings(name, seed, own, **common), _dataset()).train.rows.tolist() for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]


class TestKeys:
    def test_shards_are_runs_of_rows_sorted_by_class(self) -> None:
        dataset = _dataset()
        federation = build(_settings("shard", own={"per_client": 1, "size": 15}), dataset)
        counts = federation.class_counts(dataset)
        assert sorted(map(sorted, counts.tolist())) == [[0, 0, 0, 15]] * 8
        assert counts.sum(axis=0).tolist() == [30] * 4

    @pytest.mark.parametrize(("keep", "dealt"), [(False, 112), (True, 120)])
    def test_an_incomplete_shard_is_kept_if_wanted(self, keep: bool, dealt: int) -> None:
        own = {"per_client": 0, "size": 14, "keep_incomplete": keep}
        assert len(build(_settings("shard", own=own), _dataset()).train.rows) == dealt

    @pytest.mark.parametrize("name", ["size", "inner-dirichlet"])
    @pytest.mark.parametrize(
        ("text", "sizes"), [("", [15] * 8), ("9", [9] * 8), ("1,2,3,4,5,6,7,40", [1, 2, 3, 4, 5, 6, 7, 40])]
    )
    @pytest.mark.filterwarnings("ignore:The sum of")
    def test_sizes_are_those_given(self, name: str, text: str, sizes: list[int]) -> None:
        assert build(_settings(name, own={"sizes": text}), _dataset()).train.sizes.tolist() == sizes

    @pytest.mark.parametrize(("name", "power"), [("linear", 1), ("square", 2)])
    def test_sizes_grow_with_the_client(self, name: str, power: int) -> None:
        units = np.arange(1, 9) ** power
        sizes = build(_settings(name), _dataset((90,) * 4)).train.sizes
        assert np.abs(sizes - 360 * units / units.sum())[:-1].max() < 1
        assert sizes.sum() == 360

    def test_exponential_sizes_grow_by_e(self) -> None:
        sizes = build(_settings("exponential", num_clients=3), _dataset((300, 300))).train.sizes
        np.testing.assert_allclose(sizes[1:] / sizes[:-1], np.e, rtol=0.05)

    def test_a_small_alpha_gives_inner_dirichlet_clients_few_classes(self) -> None:
        dataset = _dataset((500,) * 4)
        held = {}
        for alpha in (0.05, 100.0):
            own = {"sizes": "20", "alpha": alpha}
            with pytest.warns(UserWarning, match="does not sum"):
                counts = build(_settings("inner-dirichlet", own=own), dataset).class_counts(dataset)
            held[alpha] = counts.max(axis=1).mean() / 20
        assert held[0.05] > 0.7 > 0.5 > held[100.0]

    def test_a_distribution_is_followed(self, tmp_path) -> None:
        """Two classes for each of 8 clients: each of 4 classes has 4 clients, which share 30 rows as the file says."""
        path = tmp_path / "d.csv"
        path.write_text("1,2,3,4\n" * 4)
        dataset = _dataset()
        own = {"file": str(path), "rescale": False}
        counts = build(_settings("distribution", own=own), dataset).class_counts(dataset)
        assert [sorted(column[column > 0]) for column in counts.T] == [[1, 2, 3, 4]] * 4
        own = {"file": str(path), "preassigned": 0}
        counts = build(_settings("distribution", own=own), dataset).class_counts(dataset)
        assert counts.sum() == 120
        assert ((counts > 0).sum(axis=1) == 2).all()
        for column in counts.T:
            assert np.abs(np.sort(column[column > 0]) - np.array([3, 6, 9, 12])).max() <= 1

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("1,2,3,4\n" * 3, "has 3 lines; expected 4, one for each class"),
            ("1,2,3,4\n1,2,3\n1,2,3,4\n1,2,3,4\n", "line 2: 3 numbers; expected 4"),
            ("1,2,3,4\n1,2,x,4\n1,2,3,4\n1,2,3,4\n", "line 2: 'x' is no number ≥ 0"),
            ("1,2,-3,4\n" * 4, "line 1: '-3' is no number ≥ 0"),
            ("1,2,nan,4\n" * 4, "line 1: 'nan' is no number ≥ 0"),
            ("0,0,0,0\n" * 4, "a line of zeros only"),
        ],
    )
    def test_a_wrong_distribution_names_the_line(self, tmp_path, content: str, message: str) -> None:
        path = tmp_path / "d.csv"
        path.write_text(content)
        with pytest.raises(DataError, match=message):
            build(_settings("distribution", own={"file": str(path)}), _dataset())

    @pytest.mark.parametrize("assignment", ["random", "deterministic", "first-deterministic"])
    def test_pathological_clients_have_their_number_of_classes(self, assignment: str) -> None:
        dataset = _dataset()
        own = {"classes": 3, "assignment": assignment}
        counts = build(_settings("pathological", own=own), dataset).class_counts(dataset)
        assert ((counts > 0).sum(axis=1) == 3).all()
        if assignment == "deterministic":
            assert [np.flatnonzero(row == 0).tolist() for row in counts] == [[3], [0], [1], [2]] * 2

    def test_strictness_sorts(self) -> None:
        dataset = _dataset(task="regression")
        spread = {}
        for strictness in (0.0, 1.0):
            federation = build(_settings("continuous", own={"strictness": strictness}), dataset)
            means = [dataset.train.y[federation.train[client]].mean() for client in range(8)]
            spread[strictness] = np.std(means)
            assert strictness == 0 or means == sorted(means)
        assert spread[1.0] > 2 * spread[0.0]

    def test_continuous_sorts_by_the_column_that_is_named(self) -> None:
        dataset = _dataset()
        spec = dataclasses.replace(dataset.spec, kind="table", table=TableSchema({"h": (0.0, 1.0), "w": (0.0, 1.0)}))
        x = np.random.default_rng(1).normal(size=(120, 2)).astype(np.float32)
        table = dataclasses.replace(dataset, spec=spec, train=dataclasses.replace(dataset.train, x=x))
        for by, values in (("age", np.arange(120) % 50), ("w", x[:, 1])):
            federation = build(_settings("continuous", own={"by": by, "strictness": 1.0}), table)
            ends = [(values[rows].min(), values[rows].max()) for rows in (federation.train[i] for i in range(8))]
            assert all(before[1] <= after[0] for before, after in pairwise(ends))

    @pytest.mark.parametrize(
        ("size", "mode", "sizes"),
        [
            (5, "allow-smaller", [5, 5, 2]),
            (5, "allow-bigger", [6, 6]),
            (5, "drop-remainder", [5, 5]),
            (4, "strict", [4] * 3),
        ],
    )
    def test_natural_clients_are_grouped(self, size: int, mode: str, sizes: list[int]) -> None:
        dataset = _dataset()
        own = {"group_size": size, "mode": mode}
        federation = build(_settings("grouped-natural", own=own, num_clients=0), dataset)
        groups = [name.split("|") for name in federation.names]
        assert list(map(len, groups)) == sizes
        for client, group in enumerate(groups):
            for split, rows in ((dataset.train, federation.train[client]), (dataset.test, federation.test[client])):
                assert sorted(rows) == np.flatnonzero(np.isin(split.clients["client"], group)).tolist()

    def test_sorted_groups_are_neighbours(self) -> None:
        federation = build(_settings("grouped-natural", own={"sort": True}, num_clients=0), _dataset())
        assert federation.names.tolist()[:2] == ["u00|u01", "u02|u03"]


class TestRegression:
    @pytest.mark.parametrize(
        "name", ["iid", "size", "linear", "square", "exponential", "continuous", "quantity-skew", "natural"]
    )
    def test_these_divide_numbers(self, name: str) -> None:
        dataset = _dataset(task="regression", tests=60)
        federation = build(_settings(name, num_clients=0 if name == "natural" else 4), dataset)
        assert (_owners(federation, 120) == 1).all()
        if name != "natural":  # half as many test rows as training rows, for each client
            assert np.abs(federation.test.sizes - federation.train.sizes / 2).max() < 1

    @pytest.mark.parametrize(
        "name",
        ["classes", "dirichlet", "shard", "distribution", "pathological", "inner-dirichlet", "extended-dirichlet"],
    )
    def test_others_name_those_that_do(self, name: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            build(_settings(name), _dataset(task="regression"))
        assert str(caught.value).startswith(f"partitioner: '{name}' cannot divide 'made'")
        listed = str(caught.value).partition("Partitioners that can: ")[2].split(", ")
        assert {"iid", "size", "linear", "continuous", "natural", "file"} <= set(listed)
        assert name not in listed


@pytest.mark.parametrize(
    ("name", "own", "common", "message"),
    [
        ("shard", {"per_client": 0}, {}, "shard.size: give the size"),
        ("shard", {"keep_incomplete": True}, {}, "shard.keep-incomplete: "),
        ("shard", {"size": 99}, {}, "partitioner 'shard' cannot share"),
        ("size", {"sizes": "1,2"}, {}, "size.sizes: 2 sizes for 8 clients"),
        ("size", {"sizes": "16"}, {}, "size.sizes: the sizes add up to 128, but there are 120"),
        ("size", {"sizes": "5"}, {"samples_per_client": 5}, "size.sizes: give either"),
        ("inner-dirichlet", {"sizes": "16"}, {}, "inner-dirichlet.sizes: the sizes add up to 128"),
        ("distribution", {}, {"num_clients": 6}, "num-clients: 'distribution' .* a multiple of 4"),
        ("distribution", {"classes": 5}, {}, "distribution.classes: 5 classes of each client, but the data have 4"),
        ("distribution", {"rescale": False}, {}, "distribution.rescale: "),
        ("distribution", {"preassigned": 9}, {}, "partitioner 'distribution' cannot share"),
        ("pathological", {"classes": 5}, {}, "partitioner 'pathological' cannot share"),
        ("continuous", {"by": "height"}, {}, "continuous.by: 'height' is no column .* Known: client, age"),
        ("continuous", {"by": "client"}, {}, "continuous.by: column 'client' does not hold numbers"),
        ("grouped-natural", {"group_size": 5, "mode": "strict"}, {"num_clients": 0}, "cannot share"),
        ("grouped-natural", {}, {"num_clients": 7}, "num-clients: 'made' has only 6 natural clients, not 7"),
        ("grouped-natural", {}, {"num_clients": 0, "min_test_examples": 1}, "min-test-examples: only"),
        ("exponential", {}, {"num_clients": 40}, "partitioner 'exponential' cannot share"),
        ("pfllib-pathological", {"classes": 5}, {}, "pfllib-pathological.classes: 5 classes .* the data have 4"),
        ("pfllib-pathological", {"classes": 1}, {"num_clients": 5}, "leave the last 1 of 4 classes without a client"),
        ("pfllib-pathological", {}, {"num_clients": 100}, "num-clients: class 0 has .* rows for 50 clients"),
        ("pfllib-practical", {}, {"domain_column": "client"}, "domain-column: 'pfllib-practical' divides"),
        ("pfllib-practical", {"alpha": 1e-9}, {}, "pfllib-practical.alpha: with 1e-09 and 8 clients"),
        ("extended-dirichlet", {"classes": 5}, {}, "extended-dirichlet.classes: 5 classes .* the data have 4"),
        ("extended-dirichlet", {"classes": 1}, {"num_clients": 3}, "num-clients: 3 clients with 1 classes each"),
        ("extended-dirichlet", {"alpha": 1e-9}, {}, "extended-dirichlet.alpha: with 1e-09 and 8 clients"),
        ("quantity-skew", {"alpha": 1e-9}, {}, "quantity-skew.alpha: with 1e-09 and 8 clients"),
        ("noise", {}, {"min_test_examples": 1}, "min-test-examples: only"),
    ],
)  # fmt: skip
def test_what_is_refused(name: str, own: dict[str, Any], common: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message):
        build(_settings(name, own=own, **common), _dataset())


def test_settings_with_the_keys_of_another_partitioner_are_refused() -> None:
    wrong = _settings("shard").model_copy(update={"partitioner": "size"})
    with pytest.raises(DataError, match="TypeError: the settings hold ShardKeys, not SizeKeys"):
        build(wrong, _dataset())
