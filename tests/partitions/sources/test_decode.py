"""Tests of partitions.decode: image formats, and every kind of malformed row."""

from __future__ import annotations

import io

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from florilegium.common.errors import DataError
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.sources.decode import decode
from florilegium.partitions.sources.table_files import read_parquet
from tests.partitions.made import IMAGE, decode_image, make, png


def _replace(table: pyarrow.Table, column: str, row: int, value: object, type_=None) -> pyarrow.Table:
    cells = table.column(column).to_pylist()
    cells[row] = value
    array = pyarrow.array(cells, type=type_ or table.schema.field(column).type)
    return table.set_column(table.column_names.index(column), column, array)


def _encode(image: Image.Image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, **options)
    return buffer.getvalue()


class TestImages:
    @given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9)))
    def test_grey_png_is_lossless(self, pixels):
        np.testing.assert_array_equal(decode_image(png(pixels)["bytes"], 1), pixels[..., None])

    @given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6), st.just(3))))
    def test_colour_png_is_lossless(self, pixels):
        np.testing.assert_array_equal(decode_image(png(pixels)["bytes"], 3), pixels)

    def test_grey_becomes_colour_by_repetition(self):
        pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
        np.testing.assert_array_equal(decode_image(png(pixels)["bytes"], 3), np.stack([pixels] * 3, axis=2))

    def test_colour_becomes_grey_by_luminance(self):
        """ITU-R 601: 0.299 R + 0.587 G + 0.114 B."""
        pixels = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 90, 90]]], np.uint8)
        expected = pixels @ np.array([0.299, 0.587, 0.114])
        assert np.abs(decode_image(png(pixels)["bytes"], 1)[..., 0] - expected).max() < 1

    def test_jpeg_is_understood(self):
        flat = Image.new("RGB", (16, 16), (120, 120, 120))
        assert np.abs(decode_image(_encode(flat, format="JPEG", quality=95), 3).astype(int) - 120).max() <= 2


class TestSources:
    def test_a_dataset_of_the_hub_decodes_like_its_parquet_file(self):
        made = make("cifar10", 4)
        names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
        features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=names)})
        hub = datasets.Dataset.from_dict(
            {"img": [Image.fromarray(image) for image in made.x], "label": made.y}, features=features
        )
        split = decode(DATASETS["cifar10"], hub.data.table, "hub")
        np.testing.assert_array_equal(split.x, made.x)
        np.testing.assert_array_equal(split.y, made.y)

    def test_read_parquet_reads_what_was_written(self, tmp_path):
        table = make("adult", 5).table
        pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
        assert read_parquet(tmp_path / "train.parquet").equals(table)


class TestUnreadableFiles:
    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(DataError, match=f"there is no file {tmp_path / 'train.parquet'}"):
            read_parquet(tmp_path / "train.parquet")

    @pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + bytes(50) + b"PAR1"])
    def test_another_file_is_named(self, tmp_path, content):
        (tmp_path / "train.parquet").write_bytes(content)
        with pytest.raises(DataError, match=f"{tmp_path / 'train.parquet'} is not a readable parquet file"):
            read_parquet(tmp_path / "train.parquet")

    def test_a_cut_file_is_named(self, tmp_path):
        file = tmp_path / "train.parquet"
        pyarrow.parquet.write_table(make("mnist", 5).table, file)
        file.write_bytes(file.read_bytes()[:-20])
        with pytest.raises(DataError, match=f"{file} is not a readable parquet file"):
            read_parquet(file)

    def test_a_file_without_rows_is_named(self, tmp_path):
        pyarrow.parquet.write_table(make("mnist", 5).table.slice(0, 0), tmp_path / "train.parquet")
        with pytest.raises(DataError, match=f"{tmp_path / 'train.parquet'} has no rows"):
            read_parquet(tmp_path / "train.parquet")


class TestMalformedRows:
    @pytest.mark.parametrize(
        ("name", "column"),
        [
            ("cifar10", "img"), ("cifar100", "fine_label"), ("femnist", "character"), ("shakespeare", "x"),
            ("sent140", "sentiment"), ("adult", "hours.per.week"), ("adult", "income"),
        ],
    )  # fmt: skip
    def test_a_missing_column_is_named_with_those_found_and_needed(self, name, column):
        table = make(name, 3).table.drop_columns(column)
        with pytest.raises(DataError) as caught:
            decode(DATASETS[name], table, "a.parquet")
        message = str(caught.value)
        assert message.startswith(f"a.parquet: column '{column}' is missing. Found: {', '.join(table.column_names)};")
        assert f"'{name}' needs: " in message
        assert column in message.partition("needs: ")[2]

    @pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 31), (64, 64), (1, 1)])
    def test_an_image_of_another_size_is_named_by_row(self, height, width):
        cell = png(np.zeros((height, width, 3), np.uint8))
        table = _replace(make("cifar10", 4).table, "img", 2, cell)
        with pytest.raises(DataError) as caught:
            decode(DATASETS["cifar10"], table, "a.parquet")
        expected = f"a.parquet: row 2 of column 'img' has {height}×{width} pixels, 'cifar10' needs 32×32"
        assert str(caught.value) == expected

    @pytest.mark.parametrize("cell", [{"bytes": b"no image", "path": None}, {"bytes": None, "path": "x.png"}, None])
    def test_a_cell_that_is_no_image_is_named_by_row_and_column(self, cell):
        table = _replace(make("cifar10", 4).table, "img", 1, cell)
        with pytest.raises(DataError, match=r"a\.parquet: row 1 of column 'img' is not a readable picture"):
            decode(DATASETS["cifar10"], table, "a.parquet")

    def test_a_cut_image_is_named_by_row_and_column(self):
        cell = png(np.random.default_rng(0).integers(256, size=(32, 32, 3), dtype=np.uint8))
        table = _replace(make("cifar10", 4).table, "img", 3, {"bytes": cell["bytes"][:600], "path": None})
        with pytest.raises(DataError, match="row 3 of column 'img' is not a readable picture"):
            decode(DATASETS["cifar10"], table, "a.parquet")

    def test_an_image_with_a_damaged_header_is_named_by_row_and_column(self):
        data = bytearray(make("mnist", 1).table.column("image")[0]["bytes"].as_py())
        data[8:12] = (5).to_bytes(4, "big")  # the length of the first chunk, which is always 13
        cells = pyarrow.array([{"bytes": bytes(data), "path": None}], type=IMAGE)
        table = pyarrow.table({"image": cells, "label": [1]})
        with pytest.raises(DataError, match="row 0 of column 'image' is not a readable picture"):
            decode(DATASETS["mnist"], table, "a.parquet")

    @pytest.mark.parametrize(
        ("name", "column", "value", "allowed"),
        [
            ("mnist", "label", 10, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
            ("mnist", "label", -1, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
            ("mnist", "label", None, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
            ("cifar100", "fine_label", 100, "0 to 99"),
            ("femnist", "character", 62, "0 to 61"),
            ("emnist_letters", "label", 26, "0 to 25"),
            ("sent140", "sentiment", 2, "[0, 4]"),  # neutral: in the hub's test split only
            ("shakespeare", "y", "$", "'\\n' to '}'"),
            ("shakespeare", "y", "ab", "'\\n' to '}'"),
            ("adult", "income", "<=50K.", "['<=50K', '>50K']"),  # as UCI's test file writes it
        ],
    )
    def test_a_label_out_of_range_is_named_by_row_with_those_allowed(self, name, column, value, allowed):
        table = _replace(make(name, 4).table, column, 3, value)
        with pytest.raises(DataError) as caught:
            decode(DATASETS[name], table, "a.parquet")
        message = str(caught.value)
        assert message.startswith(f"a.parquet: the label in row 3 is {value!r}")
        assert message.endswith(f"the classes of '{name}' are {allowed}")

    def test_a_missing_text_is_named(self):
        table = _replace(make("sent140", 3).table, "text", 1, None)
        with pytest.raises(DataError, match=r"a\.parquet.*text"):
            decode(DATASETS["sent140"], table, "a.parquet")
