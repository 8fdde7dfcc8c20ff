"""Datasets of the user's own, and the US census as one of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.federation import federate
from florilegium.partitions.sources.census import FEATURES, write_census
from florilegium.partitions.sources.schema import read_schema
from tests.support import load, settings

SCHEMA = """
clients = ["town"]
[numbers]
age = [40.0, 10.0]
[categories]
sex = ["f", "m"]
[vectors]
embedding = 3
"""


def _write(folder: Path, schema: str = SCHEMA, **columns: list) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "schema.toml").write_text(schema)
    table = {
        "age": [50, 40, 30, 20], "sex": ["f", "m", "m", "f"], "town": ["a", "a", "b", "b"],
        "embedding": [[1.0, 2.0, 3.0]] * 4, **columns,
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "train.parquet")
    return folder


def test_columns_become_features(tmp_path: Path) -> None:
    folder = _write(tmp_path / "people")
    dataset = load(str(folder), "", str(tmp_path / "cache"))
    expected = [[1, 1, 0, 1, 2, 3], [0, 0, 1, 1, 2, 3], [-1, 0, 1, 1, 2, 3], [-2, 1, 0, 1, 2, 3]]
    np.testing.assert_array_equal(dataset.train.x, expected)
    np.testing.assert_array_equal(dataset.train.y, 0)  # without a label all are of one class
    assert dataset.spec.shape == (6,)
    assert dataset.train.clients["town"].tolist() == ["a", "a", "b", "b"]


def test_labels(tmp_path: Path) -> None:
    folder = _write(
        tmp_path / "p", 'label = "rich"\nlabels = ["no", "yes"]\n' + SCHEMA, rich=["no", "yes", "yes", "no"]
    )
    assert load(str(folder), "", str(tmp_path / "cache")).train.y.tolist() == [0, 1, 1, 0]


def test_a_changed_schema_is_decoded_anew(tmp_path: Path) -> None:
    folder = _write(tmp_path / "people")
    first = load(str(folder), "", str(tmp_path / "cache"))
    (folder / "schema.toml").write_text(SCHEMA.replace("40.0", "30.0"))
    read_schema.cache_clear()  # as another process would find it
    second = load(str(folder), "", str(tmp_path / "cache"))
    np.testing.assert_allclose(second.train.x[:, 0], first.train.x[:, 0] + 1)


def test_natural_clients_of_several_columns(tmp_path: Path) -> None:
    folder = _write(tmp_path / "people", SCHEMA.replace('["town"]', '["town", "sex"]'))
    keys = {"dataset": str(folder), "partitioner": "natural", "num-clients": 0, "model": "linear"}
    federation, _ = federate(settings(**keys, **{"client-column": "town+sex"}))
    assert sorted(federation.names) == ["a+f", "a+m", "b+f", "b+m"]
    with pytest.raises(ConfigurationError, match="client-column: 'age' is not one of town, sex"):
        federate(settings(**keys, **{"client-column": "town+age"}))


def test_bad_values_are_named(tmp_path: Path) -> None:
    for number, (columns, said) in enumerate(
        [
            ({"sex": ["f", "x", "m", "f"]}, "column 'sex' has the unknown category 'x'"),
            ({"age": [1.0, float("nan"), 2.0, 3.0]}, "column 'age' has no number in row 1"),
            ({"embedding": [[1.0, 2.0]] * 4}, "column 'embedding' must hold lists of 3 numbers"),
        ]
    ):
        folder = _write(tmp_path / f"bad{number}", **columns)
        with pytest.raises(DataError, match=said):
            load(str(folder), "", str(tmp_path / "cache"))


def test_a_scale_that_overflows_is_named(tmp_path: Path) -> None:
    folder = _write(tmp_path / "people", SCHEMA.replace("10.0", "0.1"), age=[3e38, 1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="column 'age' has a number that its scale in the schema makes too large"):
        load(str(folder), "", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("clients = [", "is not valid TOML"),
        ('colour = "red"', "colour: Extra inputs are not permitted"),
        ('clients = ["town"]', "it names no input column"),
        ("[numbers]\nage = [1.0, 0.0]", "numbers.age has no positive standard deviation"),
        ("[vectors]\nembedding = 0", "vectors.embedding: Input should be greater than 0"),
        ('[categories]\nsex = ["f", "f"]', "sex has a value twice"),
        ('label = "rich"\n[vectors]\nembedding = 3', "label and labels go together"),
    ],
)
def test_bad_schemas_are_refused(tmp_path: Path, schema: str, said: str) -> None:
    folder = _write(tmp_path / "people", schema)
    with pytest.raises(ConfigurationError, match=said):
        find_spec(str(folder))


def test_a_folder_without_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"dataset: there is no .*schema\.toml"):
        find_spec(str(tmp_path))


def test_the_census(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    people = pandas.DataFrame({name: rng.integers(1, 4, size=60).astype(float) for name in FEATURES})
    people["ST"], people["COW"] = np.repeat([1.0, 6.0, 56.0], 20), np.tile([1.0, 5.0], 30)
    people["PINCP"] = np.linspace(10_000, 90_000, 60)
    people.loc[3, "SCHL"] = np.nan
    write_census(people, tmp_path / "census")
    keys = {"dataset": str(tmp_path / "census"), "partitioner": "natural", "num-clients": 0, "model": "centers",
            "method": "feddp-kmeans", "client-rows": "COW=5", "server-ood-rows": "COW=1", "server-examples": 5,
            "server-ood-examples": 10}  # fmt: skip
    federation, dataset = federate(settings(**keys))
    assert sorted(federation.names) == ["1", "56", "6"]
    assert len(dataset.train) == 59
    np.testing.assert_array_equal(dataset.train.x.sum(axis=1), 7)  # a one for each of seven columns
    assert np.linalg.norm(dataset.train.x, axis=1).max() == pytest.approx(2.65, abs=0.01)  # the thesis' table D.1
    assert set(dataset.train.clients["COW"][federation.train.rows]) == {"5"}
    assert len(federation.server) == 15
    with pytest.raises(DataError, match="the census has no column 'MAR'"):
        write_census(people.drop(columns="MAR"), tmp_path / "census")
