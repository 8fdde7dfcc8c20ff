"""One rule says when cells hold the same value, for labels, categories and clients, in data folders and on devices."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from florilegium.common.errors import DataError
from florilegium.partitions.describing import decisions
from florilegium.partitions.device_data import read_device
from florilegium.partitions.loading import dataset_of, load_dataset
from florilegium.partitions.natural_clients import client_names
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources.cells import meant, spelled, spellings
from florilegium.partitions.sources.schema import read_schema
from florilegium.partitions.spec import Split


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (" yes\t", "yes"), ("1.0", "1"), ("-3.00", "-3"), ("0.0", "0"), ("1.10", "1.10"), ("007", "007"), ("1.", "1."),
        ("007.0", "007.0"), (".0", ".0"), ("1e0", "1e0"), ("R&amp;D", "R&D"), ("Zoe\u0308", "Zo\u00eb"),
        ("E11.0", "E11.0"), ("\u00a0x\u00a0", "x"), ("\u0661.0", "\u0661.0"),
    ],
)  # fmt: skip
def test_a_text_in_the_spelling_of_its_value(text: str, value: str) -> None:
    assert spelled(text) == spelled(value) == value


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["true", "FALSE", "1", "0"], ["1", "0", "1", "0"]),
        (["True", "true", "false"], ["true", "true", "false"]),
        (["True", "False"], ["True", "False"]),
        (["true", "1", "unknown"], ["true", "1", "unknown"]),
        (["1.0", "true", "0", ""], ["1", "1", "0", ""]),
        (["Yes", "yes"], ["Yes", "yes"]),
    ],
)
def test_truth_values_are_digits_where_a_column_holds_nothing_else(words: list[str], values: list[str]) -> None:
    assert [spellings(words)[word] for word in words] == values


@pytest.mark.parametrize(
    ("words", "known", "found"),
    [
        ([" a", "a "], ["a", "b"], {" a": "a", "a ": "a"}),
        (["TRUE", "0.0"], ["0", "1"], {"TRUE": "1", "0.0": "0"}),
        (["1", "0"], ["False", "True"], {"1": "True", "0": "False"}),
        (["1"], ["true", "other"], {}),
        (["1.50"], ["1.5"], {"1.50": "1.5"}),
        (["2", "2.0"], [1, 2], {"2": 2, "2.0": 2}),
    ],
)
def test_what_is_known_is_found_by_value(words: list[str], known: list[Any], found: dict[str, Any]) -> None:
    assert meant(words, known) == found


def _sites(tmp_path: Path, column: str, *cells: tuple[str, ...]) -> SourceSettings:
    for site, words in zip("abc", cells, strict=False):
        folder = tmp_path / "own" / site
        folder.mkdir(parents=True)
        rows = [{"x": n * 0.5, "kind": "ab"[n % 2], "label": str(n // 3 % 2)} | {column: words[n % len(words)]}
                for n in range(30)]  # fmt: skip
        lines = [",".join(map(str, row.values())) for row in rows]
        (folder / "train.csv").write_text("x,kind,label\n" + "\n".join(lines) + "\n")
    return SourceSettings.model_validate({"dataset": str(tmp_path / "own"), "cache_dir": str(tmp_path / "cache")})


@pytest.mark.parametrize("column", ["kind", "label"])
@pytest.mark.parametrize(
    ("cells", "values", "merged"),
    [
        ([("yes", "no"), (" yes", "no ")], ("no", "yes"), 30),
        ([("true", "false"), ("1", "0")], ("0", "1"), 30),
        ([("1", "2", "A"), ("1.0", "2.0", "A")], ("1", "2", "A"), 20),
        ([("Zoe\u0308", "b"), ("Zo\u00eb", "b"), (" b", "b")], ("Zo\u00eb", "b"), None),
        ([("R&amp;D", "x"), ("R&D", "x")], ("R&D", "x"), 15),
    ],
)
def test_sites_that_spell_one_value_differently(
    tmp_path: Path, column: str, cells: list[tuple[str, ...]], values: tuple[str, ...], merged: int | None
) -> None:
    """The rows of each site have the features, or the classes, that they have in the other site."""
    keys = _sites(tmp_path, column, *cells)
    spec = dataset_of(keys)
    found = spec.labels if column == "label" else spec.table.categories["kind"]  # type: ignore[union-attr]
    assert found == values
    said = [line for line in decisions(spec, keys.cache_dir) if "another spelling of the same value" in line]
    assert len(said) == 1
    assert merged is None or said[0].startswith(f"column '{column}': {merged} cells")
    train = load_dataset(keys).train
    sites = train.clients["client"]
    own = train.y if column == "label" else train.x[:, 1:]
    np.testing.assert_array_equal(own[sites == "a"], own[sites == "b"])


def test_other_cases_are_other_values_and_are_named(tmp_path: Path) -> None:
    keys = _sites(tmp_path, "label", ("yes", "no"), ("Yes", "no"))
    spec = dataset_of(keys)
    assert spec.labels == ("Yes", "no", "yes")
    assert "column 'label': values that differ in case alone are different: Yes, yes" in decisions(spec, keys.cache_dir)


def test_the_median_category_is_counted_over_its_spellings(tmp_path: Path) -> None:
    keys = _sites(tmp_path, "kind", ("true", "true", "0", ""), ("1", "0", "0", "0")).model_copy(
        update={"missing": "median"}
    )
    table = dataset_of(keys).table
    assert table is not None
    assert table.fill["kind"] == "0"  # 8 of a, 22 of b, against 15 and 8


def test_a_device_and_a_folder_with_a_schema_read_the_same_values(tmp_path: Path) -> None:
    schema = 'label = "label"\nlabels = ["no", "yes"]\n[numbers]\nx = [0.0, 1.0]\n[categories]\nkind = ["0", "1"]\n'
    own = tmp_path / "own"
    for site, rows in (("a", "1, yes,true\n2,no,FALSE\n"), ("b", "1,yes,1.0\n2,no ,0\n")):
        (own / site).mkdir(parents=True)
        (own / site / "train.csv").write_text("x,label,kind\n" + rows)
        (own / site / "test.csv").write_text("x,label,kind\n" + rows.replace("1,", "3,").replace("2,", "4,"))
    (own / "schema.toml").write_text(schema)
    keys = {"dataset": str(own), "cache_dir": str(tmp_path / "cache")}
    train = load_dataset(SourceSettings.model_validate(keys)).train
    assert train.y.tolist() == [1, 0, 1, 0]
    assert train.x[:, 1:].tolist() == [[0, 1], [1, 0]] * 2
    for site in "ab":
        data = read_device(own / site, read_schema(own))
        assert data.train.y.tolist() == [1, 0]
        assert data.train.x[:, 1:].tolist() == [[0, 1], [1, 0]]


def test_types_that_do_not_go_together_name_the_sites(tmp_path: Path) -> None:
    for site, label in (("a", [True, False]), ("b", ["1", "0"])):
        (tmp_path / "own" / site).mkdir(parents=True)
        pq.write_table(pa.table({"x": [0.5, 1.5], "label": label}), tmp_path / "own" / site / "train.parquet")
    keys = {"dataset": str(tmp_path / "own"), "cache_dir": str(tmp_path / "cache")}
    with pytest.raises(DataError, match=r"bool in .*/a/train\.parquet; string in .*/b/train\.parquet"):
        dataset_of(SourceSettings.model_validate(keys))


def test_joined_names_that_collide_are_refused() -> None:
    names = {"town": np.array(["a+b", "a", "c"]), "ward": np.array(["c", "b+c", "d"])}
    split = Split(np.zeros((3, 1)), np.zeros(3, np.int64), names)
    with pytest.raises(DataError, match=r"are both joined to 'a\+b\+c'"):
        client_names(split, "town+ward")
    kept = Split(split.x[:2], split.y[:2], {name: column[1:] for name, column in names.items()})
    assert client_names(kept, "town+ward").tolist() == ["a+b+c", "c+d"]


def test_the_schema_that_is_written_can_be_read(tmp_path: Path) -> None:
    keys = _sites(tmp_path, "kind", ("true", "false"), ("1", "0"))
    folder = Path(dataset_of(keys).folder)
    assert tomllib.loads((folder / "schema.toml").read_text())["categories"]["kind"] == ["0", "1"]
