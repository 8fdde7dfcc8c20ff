"""Blank lines of CSV files: rows without a value in files of one column, counted or refused in others."""

from __future__ import annotations

from pathlib import Path

import pytest

from florilegium.common.errors import DataError
from florilegium.partitions.describing import decisions
from florilegium.partitions.device_data import read_device, read_inputs
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources.schema import read_schema
from florilegium.partitions.sources.table_files import blank_lines, read_texts
from florilegium.partitions.spec import DatasetSpec


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("t\ngood\n\nbad\n", ["good", "", "bad"]),
        ("t\r\ngood\r\n\r\n\r\nbad\r\n", ["good", "", "", "bad"]),
        ("t\n\nbad", ["", "bad"]),
        ("t\ngood\nbad\n\n\n", ["good", "bad"]),
        ("\n\nt\ngood\n\nbad\n", ["good", "", "bad"]),
        ('t\ngood\n""\nbad\n', ["good", "", "bad"]),
        ("t\ngood\nbad\n", ["good", "bad"]),
    ],
)
def test_a_blank_line_of_one_column_is_a_row(tmp_path: Path, content: str, rows: list[str]) -> None:
    (file := tmp_path / "in.csv").write_bytes(content.encode())
    table = read_texts(file)
    assert table.column("t").to_pylist() == rows
    assert blank_lines(table) == 0


@pytest.mark.parametrize(
    ("content", "blank"),
    [("a,b\n1,2\n\n3,4\n", 1), ("a,b\n\n\n1,2\n3,4\n\n", 2), ("a,b\n1,2\n,\n3,4\n", 0), ("a,b\r\n1,2\r\n\r\n3,4", 1)],
)
def test_a_blank_line_of_several_columns_is_none_and_is_counted(tmp_path: Path, content: str, blank: int) -> None:
    (file := tmp_path / "in.csv").write_bytes(content.encode())
    table = read_texts(file)
    assert [cell for cell in table.column("a").to_pylist() if cell] == ["1", "3"]
    assert blank_lines(table) == blank


def _texts(tmp_path: Path) -> DatasetSpec:
    texts = '[texts]\ncolumn = "text"\nlength = 20\n'
    (tmp_path / "schema.toml").write_text(f'label = "label"\nlabels = ["no", "yes"]\n{texts}')
    return read_schema(tmp_path)


def test_there_are_as_many_predictions_as_lines(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text\ngood 1\n\nbad 2\nfine 3\n")
    x = read_inputs(tmp_path / "in.csv", _texts(tmp_path))[0].x
    (tmp_path / "in.csv").write_text('text\ngood 1\n""\nbad 2\nfine 3\n')
    same = read_inputs(tmp_path / "in.csv", _texts(tmp_path))[0].x
    assert x.tolist() == same.tolist()
    assert len(x) == 4


def test_predictions_that_would_stand_beside_other_lines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("text,number\ngood 1,1\n\nbad 2,2\n")
    with pytest.raises(DataError, match=r"in\.csv has 1 blank lines, .*remove them"):
        read_inputs(tmp_path / "in.csv", _texts(tmp_path))


def test_lines_of_training_rows_are_counted_in_folders_and_on_devices(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "train.csv").write_text("text,label\n" + "good,yes\n\nbad,no\n" * 5)
    keys = SourceSettings.model_validate({"dataset": str(own), "cache_dir": str(tmp_path / "cache")})
    assert f"left out: {own / 'train.csv'}: 5 blank lines" in decisions(dataset_of(keys), keys.cache_dir)
    data = read_device(own, _texts(tmp_path))
    assert f"left out: {own / 'train.csv'}: 5 blank lines" in data.notes


@pytest.mark.parametrize(
    ("text", "row", "count"),
    [
        ("x,label\n1,a\nx,label\n2,b\n", 1, 1), ("u,v\nu,v\n1,2\n", 0, 1), ("u,v\np,q\n u , v\nr,s\nu,v\n", 1, 2),
        ('"a b",c\n1,2\n"a b",c\n', 1, 1),
    ],
)  # fmt: skip
def test_lines_of_names_between_rows_are_refused(tmp_path: Path, text: str, row: int, count: int) -> None:
    (tmp_path / "all.csv").write_text(text)
    with pytest.raises(DataError, match=rf"all.csv: row {row} repeats the line of names \({count} rows do\)"):
        read_texts(tmp_path / "all.csv")


@pytest.mark.parametrize("text", ["x,y\nx,1\n2,y\n", "word\nword\nother\n", "x,y\n,\n1,2\n"])
def test_rows_that_only_look_like_it_stay(tmp_path: Path, text: str) -> None:
    (tmp_path / "all.csv").write_text(text)
    assert read_texts(tmp_path / "all.csv").num_rows == 2
