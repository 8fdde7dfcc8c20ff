"""Names of clients: compared by value, kept as they were written, and never made up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.federation import federate
from florilegium.partitions.shares import Federation
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.sources.folders import read_folder
from florilegium.partitions.sources.names import name_of, names_of
from tests.grid import run_app
from tests.support import CACHE, config, settings


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (7, "7"), (7.0, "7"), (np.float32(7), "7"), (np.int8(7), "7"), (Decimal("7.00"), "7"), ("7", "7"),
        (-0.0, "0"), (1.5, "1.5"), (2**53, str(2**53)), (2**64 - 1, "18446744073709551615"), (float(2**53), str(2**53)),
        ("007", "007"), ("1.10", "1.10"), ("7.0", "7"), ("1e3", "1e3"), ("true", "true"), (True, "True"),
        (" s0\t", "s0"), ("s 0", "s 0"), ("Zoe\u0308", "Zo\u00eb"), (b"ward", "ward"),
        (None, ""), (float("nan"), ""), (np.float64("nan"), ""), (Decimal("NaN"), ""), ("  ", ""), ("None", "None"),
    ],
)  # fmt: skip
def test_a_name_is_a_value_as_it_is_written(value: object, name: str) -> None:
    assert name_of(value) == name
    assert names_of([value, "x"], "here").tolist() == [name, "x"]


@pytest.mark.parametrize("value", [float(2**53 + 2), float("inf"), -1e300, b"\xff"])
def test_a_value_whose_digits_are_lost_is_no_name(value: object) -> None:
    with pytest.raises(DataError, match=r"column 'site': row 1 holds no name: .*write names as text or as integers"):
        names_of(["a", value], "column 'site'")


def _written(folder: Path, train: Any, test: Any = None) -> str:
    """Write a dataset whose column ``site`` names clients; return its path."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for part, site in (("train", train), ("test", test)):
        if site is not None:
            columns = {"a": rng.normal(size=len(site)), "y": np.arange(len(site)) % 2, "site": site}
            pyarrow.parquet.write_table(pa.table(columns), folder / f"{part}.parquet")
    (folder / "schema.toml").write_text('label="y"\nlabels=[0,1]\nclients=["site"]\n[numbers]\na=[0.0,1.0]\n')
    return str(folder)


def _natural(folder: Path, train: Any, test: Any = None, **keys: Any) -> Federation:
    dataset = _written(folder, train, test)
    return federate(settings(**{"dataset": dataset, "partitioner": "natural", "num_clients": 0, **keys}))[0]


def _sites(count: int, kind: pa.DataType) -> pa.Array:
    return pa.array([i % 3 for i in range(count)]).cast(kind)


KINDS = [pa.int8(), pa.float64(), pa.decimal128(21, 2), pa.string()]


@pytest.mark.parametrize(("train", "test"), [(one, two) for one in KINDS for two in (pa.int64(), pa.float64())])
def test_train_and_test_files_may_store_the_names_differently(
    tmp_path: Path, train: pa.DataType, test: pa.DataType
) -> None:
    federation = _natural(tmp_path / "data", _sites(60, train), _sites(30, test))
    assert federation.names.tolist() == ["0", "1", "2"]
    assert federation.train.sizes.tolist() == [20, 20, 20]
    assert federation.test.sizes.tolist() == [10, 10, 10]
    assert federation.notes is None


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (["s0 "] * 30 + ["s1"] * 30, ["s0"] * 15 + ["s1\t"] * 15),
        (["Zoe\u0308"] * 30 + ["Jos\u00e9"] * 30, ["Zo\u00eb"] * 15 + ["Jose\u0301"] * 15),
        (pa.array(["u"] * 30 + ["v"] * 30).dictionary_encode(), ["u"] * 15 + ["v"] * 15),
    ],
)
def test_what_nobody_sees_makes_no_other_client(tmp_path: Path, train: Any, test: Any) -> None:
    federation = _natural(tmp_path / "data", train, test)
    assert federation.test.sizes.tolist() == [15, 15]


@pytest.mark.parametrize("missing", [None, "", "  "])
def test_a_row_without_a_name_is_refused_by_its_number(tmp_path: Path, missing: str | None) -> None:
    names = [missing if i % 6 == 2 else f"s{i % 3}" for i in range(60)]
    with pytest.raises(DataError, match=r"'site' of .* names no client in row 2 of the training rows, 10 rows in all"):
        _natural(tmp_path / "train", names)
    with pytest.raises(DataError, match=r"'site' of .* names no client in row 2 of the test rows, 10 rows in all"):
        _natural(tmp_path / "test", ["s0", "s1", "s2"] * 20, names)
    # Who chooses rows by the column, or divides them otherwise, needs no name in the other rows.
    federation = _natural(tmp_path / "chosen", names, client_rows="site=s0|s1")
    assert federation.names.tolist() == ["s0", "s1"]
    assert len(_natural(tmp_path / "iid", names, partitioner="iid", num_clients=4)) == 4


def test_nan_names_nobody(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="names no client in row 1 of the training rows, 1 rows in all"):
        _natural(tmp_path / "data", [0.0, float("nan"), 1.0, 0.0])


def test_no_test_row_of_a_known_client_is_an_error_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        _natural(tmp_path / "data", ["a", "b"] * 20, ["A", "B"] * 10)
    assert "names 2 clients in test rows, none of which has training rows" in str(caught.value)
    assert "Test rows: A, B; training rows: a, b." in str(caught.value)


def test_test_rows_of_unknown_clients_are_counted_and_named(tmp_path: Path) -> None:
    train, test = ["a", "b"] * 20, ["a", "c", "b", "c", "d"]
    said = "3 of 5 test rows of .* are not used: their clients have no training rows .column 'site': c, d."
    for again in ("first", "from the cache"):
        if again == "first":
            federation = _natural(tmp_path / "data", train, test)
        else:
            federation, _ = federate(settings(dataset=str(tmp_path / "data"), partitioner="natural", num_clients=0))
        assert federation.test.sizes.tolist() == [1, 1]
        assert federation.notes is not None
        assert re.search(said, federation.notes)


def test_test_rows_without_the_column_are_not_silently_set_aside(tmp_path: Path) -> None:
    path = Path(_written(tmp_path / "data", ["a", "b"] * 20, ["a", "b"] * 5))
    table = pyarrow.parquet.read_table(path / "test.parquet")
    pyarrow.parquet.write_table(table.drop_columns("site"), path / "test.parquet")
    federation, _ = federate(settings(dataset=str(path), partitioner="natural", num_clients=0))
    assert federation.test_from_train
    assert "have no column 'site' and are not used" in str(federation.notes)


def test_domains_have_names_too(tmp_path: Path) -> None:
    keys = {"partitioner": "iid", "domain_column": "site", "num_clients": 4}
    with pytest.raises(DataError, match=r"domain-column: column 'site' of .* names no client in row 0"):
        _natural(tmp_path / "missing", [None, "a", "b", "a"] * 10, **keys)
    three = {**keys, "num_clients": 3}
    federation = _natural(tmp_path / "floats", _sites(40, pa.float64()), _sites(20, pa.int64()), **three)
    assert federation.names.tolist() == ["0", "1", "2"]
    assert federation.test.sizes.min() >= 5


def test_arrays_name_clients_by_value(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32), np.arange(30) % 2
    train: Sequence[Any] = [float(i % 3) for i in range(30)]
    path = array_dataset((x, y, train), (x, y, np.arange(30) % 3), cache_dir=str(CACHE))
    federation, _ = federate(settings(dataset=path, partitioner="natural", num_clients=0))
    assert (federation.names.tolist(), federation.test.sizes.tolist()) == (["0", "1", "2"], [10, 10, 10])
    path = array_dataset((x, y, [None, *train[1:]]), cache_dir=str(CACHE))
    with pytest.raises(DataError, match="names no client in row 0 of the training rows, 1 rows in all"):
        federate(settings(dataset=path, partitioner="natural", num_clients=0))


def test_names_of_files_in_two_forms_are_one_client(tmp_path: Path) -> None:
    (tmp_path / "Zo\u00eb.csv").write_text("a,y\n1,0\n2,1\n")
    (tmp_path / "Zoe\u0308.csv").write_text("a,y\n1,0\n2,1\n")
    with pytest.raises(DataError, match="client 'Zo\u00eb' has Zo"):
        read_folder(tmp_path)


def test_nobody_to_evaluate_is_an_error_at_the_start(tmp_path: Path) -> None:
    dataset = _written(tmp_path / "data", [f"s{i // 2}" for i in range(12)])  # two rows: none is held out
    keys = config(dataset=dataset, partitioner="natural", num_clients=0, model="linear", rounds=1)
    with pytest.raises(ConfigurationError, match="'fedavg' has nobody to evaluate: no client has a test example, of 6"):
        run_app({**keys, "runs-dir": str(tmp_path / "runs")})
