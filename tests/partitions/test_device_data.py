"""Tests of partitions.device_data: parquet, CSV, folders of pictures, functions, and a device's own names."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from florilegium.common.errors import DataError
from florilegium.partitions.clientdata import Examples, to_inputs
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.device_data import (
    DeviceSchema,
    held_back,
    read_device,
    read_device_schema,
    report,
    state_of,
)
from florilegium.partitions.sources.decode import decode
from tests.partitions.made import make


def _write(folder, name, rows, part="train", seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    made = make(name, rows, seed)
    pyarrow.parquet.write_table(made.table, folder / f"{part}.parquet")
    return made


class TestFolder:
    def test_both_files_are_used_as_they_are(self, tmp_path):
        train, test = _write(tmp_path, "mnist", 6), _write(tmp_path, "mnist", 3, "test", seed=1)
        data = read_device(tmp_path, DATASETS["mnist"])
        for examples, made in ((data.train, train), (data.test, test)):
            assert torch.equal(examples.x, to_inputs(DATASETS["mnist"], made.x))
            assert examples.y.tolist() == made.y.tolist()
        assert data.labeled

    def test_without_a_test_file_a_fifth_is_held_back(self, tmp_path):
        rows = 300
        made = _write(tmp_path, "mnist", rows)
        data = read_device(tmp_path, DATASETS["mnist"])
        assert abs(len(data.test) - rows / 5) < 5 * (rows * 0.2 * 0.8) ** 0.5
        assert len(data.train) + len(data.test) == rows
        # Every row is in exactly one part, with its own label.
        inputs = to_inputs(DATASETS["mnist"], made.x)
        found = [
            next(i for i in range(rows) if torch.equal(x, inputs[i]) and y == made.y[i])
            for part in (data.train, data.test)
            for x, y in zip(part.x, part.y, strict=True)
        ]
        assert sorted(found) == list(range(rows))

    def test_a_row_less_moves_no_other(self):
        """With private examples the account assumes that one example more or less is one training row at most."""
        made = make("mnist", 100)
        examples = Examples(to_inputs(DATASETS["mnist"], made.x), torch.from_numpy(made.y))
        whole = held_back(examples)
        for row in (0, 41, 99):
            others = torch.arange(100) != row
            assert torch.equal(held_back(examples.rows(others)), whole[others])

    def test_the_rows_held_back_are_the_same_after_a_restart(self, tmp_path):
        _write(tmp_path, "mnist", 20)
        first, second = (read_device(tmp_path, DATASETS["mnist"]) for _ in range(2))
        assert torch.equal(first.test.x, second.test.x)

    def test_other_files_do_not_matter(self, tmp_path):
        _write(tmp_path, "mnist", 6)
        (tmp_path / "notes.txt").write_text("mine")
        assert len(read_device(tmp_path, DATASETS["mnist"]).train) == 5


class TestFolderFailure:
    @pytest.mark.parametrize(
        ("prepare", "found"),
        [
            (lambda path: None, "no such folder"),
            (lambda path: path.mkdir(), "nothing"),
            (
                lambda path: path.write_text("a file"),
                "a file; a single file of rows ends in .csv, .data, .txt or .parquet",
            ),
            (lambda path: _write(path, "mnist", 2, "test"), "test.parquet"),
        ],
    )
    def test_a_folder_without_training_rows_says_what_it_has(self, tmp_path, prepare, found):
        path = tmp_path / "device"
        prepare(path)
        with pytest.raises(DataError) as caught:
            read_device(path, DATASETS["mnist"])
        wanted = "train.parquet, train.csv or pictures in train/<class>/"
        assert str(caught.value) == f"data-path: {path} holds no {wanted} (found: {found})"

    @pytest.mark.parametrize("part", ["train", "test"])
    def test_a_label_out_of_range_is_found_at_once(self, tmp_path, part):
        _write(tmp_path, "mnist", 4)
        _write(tmp_path, "mnist", 4, "test")
        table = make("mnist", 4).table
        table = table.set_column(table.column_names.index("label"), "label", [[3, 1, 12, 4]])
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet")
        with pytest.raises(DataError, match="the label in row 2 is 12, but the classes of 'mnist' are") as caught:
            read_device(tmp_path, DATASETS["mnist"])
        assert str(caught.value).startswith(str(tmp_path / f"{part}.parquet"))

    def test_data_of_another_dataset_name_the_column(self, tmp_path):
        _write(tmp_path, "cifar10", 4)
        with pytest.raises(DataError, match="column 'image' is missing"):
            read_device(tmp_path, DATASETS["mnist"])

    def test_a_file_without_rows_is_named(self, tmp_path):
        tmp_path.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(make("mnist", 2).table.slice(0, 0), tmp_path / "train.parquet")
        with pytest.raises(DataError, match=f"{tmp_path / 'train.parquet'} has no rows"):
            read_device(tmp_path, DATASETS["mnist"])


class TestTables:
    def test_csv_is_read_as_parquet_is(self, tmp_path):
        """Numbers, words that look like numbers, and labels; "adult" has them all."""
        made = _write(tmp_path / "parquet", "adult", 30)
        (tmp_path / "csv").mkdir()
        pyarrow.csv.write_csv(made.table, tmp_path / "csv" / "train.csv")
        first, second = (read_device(tmp_path / kind, DATASETS["adult"]) for kind in ("parquet", "csv"))
        _assert_same(first.train, second.train)
        _assert_same(first.test, second.test)

    def test_texts_of_two_classes_with_numbers(self, tmp_path):
        made = _write(tmp_path / "parquet", "sent140", 20)
        (tmp_path / "csv").mkdir()
        pyarrow.csv.write_csv(made.table, tmp_path / "csv" / "train.csv")
        first, second = (read_device(tmp_path / kind, DATASETS["sent140"]) for kind in ("parquet", "csv"))
        _assert_same(first.train, second.train)

    def test_parts_may_be_files_of_different_kinds(self, tmp_path):
        _write(tmp_path, "adult", 20)
        pyarrow.csv.write_csv(make("adult", 5, 1).table, tmp_path / "test.csv")
        data = read_device(tmp_path, DATASETS["adult"])
        assert (len(data.train), len(data.test)) == (20, 5)

    def test_a_device_may_have_names_of_its_own(self, tmp_path):
        made = _write(tmp_path / "ours", "adult", 30)
        (tmp_path / "theirs").mkdir()
        names = [{"age": "years", "income": "rich"}.get(name, name) for name in made.table.column_names]
        table = made.table.rename_columns(names)
        values = ["yes" if value == ">50K" else "no" for value in table.column("rich").to_pylist()]
        table = table.set_column(names.index("rich"), "rich", pyarrow.array(values))
        pyarrow.csv.write_csv(table, tmp_path / "theirs" / "train.csv")
        (tmp_path / "schema.toml").write_text(
            '[columns]\nage = "years"\nincome = "rich"\n[classes]\nyes = ">50K"\nno = "<=50K"\n'
        )
        schema = read_device_schema(tmp_path / "schema.toml")
        assert schema == DeviceSchema(
            columns={"age": "years", "income": "rich"}, classes={"yes": ">50K", "no": "<=50K"}
        )
        ours = read_device(tmp_path / "ours", DATASETS["adult"])
        _assert_same(ours.train, read_device(tmp_path / "theirs", DATASETS["adult"], schema=schema).train)

    @pytest.mark.parametrize("text", ["[column]\na = 1\n", "columns = 1", "]["])
    def test_a_schema_that_says_something_else(self, tmp_path, text):
        (tmp_path / "schema.toml").write_text(text)
        with pytest.raises(DataError, match=r"schema: .* is not a readable schema of a device"):
            read_device_schema(tmp_path / "schema.toml")

    def test_pictures_do_not_fit_into_csv(self, tmp_path):
        (tmp_path / "train.csv").write_text("label\n1\n")
        with pytest.raises(DataError, match="do not fit into a CSV file; give parquet"):
            read_device(tmp_path, DATASETS["mnist"])

    def test_a_number_that_is_none(self, tmp_path):
        pyarrow.csv.write_csv(make("adult", 3).table, tmp_path / "train.csv")
        text = (tmp_path / "train.csv").read_text().splitlines()
        age = text[0].split(",").index('"age"')
        cells = text[2].split(",")
        cells[age] = "old"
        (tmp_path / "train.csv").write_text("\n".join([*text[:2], ",".join(cells), *text[3:]]))
        with pytest.raises(DataError, match="column 'age' holds something that is no number in row 1: 'old'"):
            read_device(tmp_path, DATASETS["adult"])

    def test_without_labels(self, tmp_path):
        made = make("adult", 8)
        pyarrow.csv.write_csv(made.table.drop_columns(["income"]), tmp_path / "train.csv")
        data = read_device(tmp_path, DATASETS["adult"], labeled=False)
        np.testing.assert_array_equal(data.train.x.numpy(), decode(DATASETS["adult"], made.table, "here").x)
        assert (len(data.test), data.labeled) == (0, False)


class TestPictures:
    def _save(self, folder: Path, made, classes: dict[int, str]) -> None:
        for row, (pixels, label) in enumerate(zip(made.x, made.y, strict=True)):
            kind = folder / classes.get(int(label), str(label))
            kind.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.squeeze()).save(kind / f"{row:03d}.png")

    @pytest.mark.parametrize("below", ["train", ""])
    @pytest.mark.parametrize("name", ["mnist", "cifar10"])
    def test_a_folder_for_each_class(self, tmp_path, below, name):
        made, test = make(name, 12), make(name, 4, 1)
        self._save(tmp_path / below, made, {})
        if below:
            self._save(tmp_path / "test", test, {})
        data = read_device(tmp_path, DATASETS[name])
        if not below:
            assert len(data.train) + len(data.test) == 12
            assert len(data.train) > len(data.test)
            return
        for examples, source in ((data.train, made), (data.test, test)):
            order = np.lexsort((np.arange(len(source.y)), [str(label) for label in source.y]))
            assert examples.y.tolist() == source.y[order].tolist()
            assert torch.equal(examples.x, to_inputs(DATASETS[name], source.x[order]))

    def test_pictures_of_another_size_are_resized(self, tmp_path):
        (tmp_path / "train" / "7").mkdir(parents=True)
        Image.new("L", (50, 30), 200).save(tmp_path / "train" / "7" / "one.jpg")
        data = read_device(tmp_path, DATASETS["mnist"])
        expected = to_inputs(DATASETS["mnist"], np.full((1, 28, 28, 1), 200, np.uint8))
        torch.testing.assert_close(data.train.x, expected, atol=0.03, rtol=0)

    def test_classes_may_have_names_of_their_own(self, tmp_path):
        made = make("mnist", 10)
        self._save(tmp_path / "train", made, {3: "three"})
        data = read_device(tmp_path, DATASETS["mnist"], schema=DeviceSchema(classes={"three": 3}))
        assert sorted(data.train.y.tolist() + data.test.y.tolist()) == list(range(10))
        with pytest.raises(DataError, match=r"the label in row .* is 'three'"):
            read_device(tmp_path, DATASETS["mnist"])

    def test_without_labels_any_folder_will_do(self, tmp_path):
        made = make("mnist", 3)
        (tmp_path / "train" / "a" / "b").mkdir(parents=True)
        for file, pixels in zip(("x.png", "a/y.png", "a/b/z.png"), made.x, strict=True):
            Image.fromarray(pixels.squeeze()).save(tmp_path / "train" / file)
        assert len(read_device(tmp_path, DATASETS["mnist"], labeled=False).train) == 3

    def test_for_a_table_there_are_none(self, tmp_path):
        self._save(tmp_path / "train", make("mnist", 3), {})
        with pytest.raises(DataError, match="but 'adult' has no pictures"):
            read_device(tmp_path, DATASETS["adult"])


COLUMNS = '{c: made.table.column(c).to_pylist() for c in made.table.column_names if c != "income"}'
MODULE = """
import numpy as np
from tests.partitions.made import make

def both():
    for part, rows in enumerate((9, 4)):
        made = make({name!r}, rows, part)
        yield {x}, made.y.tolist() if {values!r} == "y" else made.table.column({values!r}).to_pylist()

def inputs():
    yield {x_of_nine}, None

def nothing():
    return []

def broken():
    raise ValueError("no such sensor")

def floats():
    yield np.zeros((2, 28, 28, 1)), [0, 1]
"""


class TestFunctions:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(str(tmp_path))

        def write(name: str, x: str, values: str) -> None:
            nine = x.replace("made.", f"make({name!r}, 9, 0).")
            text = MODULE.format(name=name, x=x, values=values, x_of_nine=nine)
            (tmp_path / "sensors.py").write_text(text)
            sys.modules.pop("sensors", None)

        yield write
        sys.modules.pop("sensors", None)

    @pytest.mark.parametrize(
        ("name", "x", "values"),
        [
            ("mnist", "made.x", "y"),
            ("sent140", 'made.table.column("text").to_pylist()', "sentiment"),
            ("adult", COLUMNS, "income"),
        ],
    )
    def test_what_it_yields_is_as_from_a_file(self, tmp_path, module, name, x, values):
        module(name, x, values)
        for part, rows in enumerate((9, 4)):
            _write(tmp_path / "files", name, rows, ("train", "test")[part], part)
        spec = DATASETS[name]
        found, expected = read_device("sensors:both", spec), read_device(tmp_path / "files", spec)
        _assert_same(found.train, expected.train)
        _assert_same(found.test, expected.test)
        unlabeled = read_device("sensors:inputs", spec, labeled=False)
        assert torch.equal(unlabeled.train.x, expected.train.x)

    @pytest.mark.parametrize(
        ("function", "said"),
        [
            ("nothing", "must yield \\(x, y\\) for training"),
            ("broken", "failed: ValueError: no such sensor"),
            ("missing", "failed: AttributeError"),
            ("inputs", "there are no labels"),
            ("floats", "pictures are float64, .* needs uint8"),
        ],
    )
    def test_what_goes_wrong_in_it_is_said(self, module, function, said):
        module("mnist", "made.x", "y")
        with pytest.raises(DataError, match=said):
            read_device(f"sensors:{function}", DATASETS["mnist"])


def test_what_was_found_is_reported(tmp_path):
    made = _write(tmp_path, "mnist", 8)
    _write(tmp_path, "mnist", 3, "test")
    classes = ", ".join(f"{label}: 1" for label in sorted(made.y.tolist()))
    labeled, unlabeled = (read_device(tmp_path, DATASETS["mnist"], labeled=labeled) for labeled in (True, False))
    expected = f"8 training and 3 test examples, 8 of 10 classes in training ({classes})"
    assert report(labeled, DATASETS["mnist"]) == expected
    assert report(unlabeled, DATASETS["mnist"]) == "8 training and 3 test examples, without labels"


def _assert_same(first: Examples, second: Examples) -> None:
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)


def test_the_state_of_data_changes_with_them(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    picture, schema = tmp_path / "train" / "cat" / "1.png", tmp_path / "schema.toml"
    picture.write_bytes(b"one")
    states = [state_of(str(tmp_path / "train"), "")]
    (tmp_path / "train" / ".#lock").symlink_to("nowhere")  # an editor's; nothing that could be read
    assert state_of(str(tmp_path / "train"), "") == states[0]
    picture.write_bytes(b"two, longer")
    states.append(state_of(str(tmp_path / "train"), ""))
    (tmp_path / "train" / "cat" / "2.png").write_bytes(b"")
    states.append(state_of(str(tmp_path / "train"), ""))
    schema.write_text("[columns]")
    states.append(state_of(str(tmp_path / "train"), str(schema)))
    assert len({*states}) == 4
    assert state_of("site_a.export:rows", "") == state_of("site_b:rows", "")
    folder = tmp_path / "nas:a"
    folder.mkdir()
    before = state_of(str(folder))
    (folder / "train.csv").write_text("x")
    assert state_of(str(folder)) != before
