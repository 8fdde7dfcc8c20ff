"""The columns that runs may read: a copy has these alone, and is made anew when the tables change."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from florilegium.common.errors import ConfigurationError
from florilegium.owner.view import View, names_in

TEXT = 'age,name,sex\n30,"Ann, A.",1\n41,Ben,0\n'


def test_a_text_has_the_columns_alone(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(TEXT)
    made = View(tmp_path / "data.csv", ("sex", "age"), (), tmp_path / "view").made()
    assert made.name == "data.csv"
    assert made.read_text().splitlines() == ["age,sex", "30,1", "41,0"]


def test_a_text_without_a_line_of_names_has_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "data.data").write_text("30,Ann,1\n41,Ben,0\n")
    (tmp_path / "names.toml").write_text('names = ["age", "name", "sex"]\n')
    names = names_in(str(tmp_path / "names.toml"))
    made = View(tmp_path / "data.data", ("age", "sex"), names, tmp_path / "view").made()
    assert made.read_text().splitlines() == ["30,,1", "41,,0"]
    assert names_in("") == ()


def test_a_folder_of_tables(tmp_path: Path) -> None:
    table = pa.table({"age": [30, 41], "name": ["Ann", "Ben"]})
    (tmp_path / "data").mkdir()
    for part in ("train", "test"):
        parquet.write_table(table, tmp_path / "data" / f"{part}.parquet")
    view = View(tmp_path / "data", ("age",), (), tmp_path / "view")
    made = view.made()
    assert sorted(path.name for path in made.iterdir()) == ["test.parquet", "train.parquet"]
    assert parquet.read_table(made / "train.parquet").to_pydict() == {"age": [30, 41]}
    assert b"Ann" not in (made / "train.parquet").read_bytes()
    assert view.made() == made
    parquet.write_table(table.slice(1), tmp_path / "data" / "train.parquet")
    os.utime(tmp_path / "data" / "train.parquet", (1, 1))
    again = view.made()
    assert parquet.read_table(again / "train.parquet").to_pydict() == {"age": [41]}
    assert not made.exists()


def test_what_has_no_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "data.csv").write_text(TEXT)
    for source in (tmp_path / "pictures", tmp_path / "nowhere"):
        with pytest.raises(ConfigurationError, match="is no table"):
            View(source, ("age",), (), tmp_path / "view").made()
    with pytest.raises(ConfigurationError, match="no column 'weight'; it has: age, name, sex"):
        View(tmp_path / "data.csv", ("weight",), (), tmp_path / "view").made()
