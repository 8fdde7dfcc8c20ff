"""Rows made in Python, in the layouts that are clear."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from florilegium.common.errors import DataError
from florilegium.partitions.datasets import find_spec
from florilegium.partitions.device_data import read_rows
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.sources.rows import laid_out
from florilegium.partitions.sources.schema import read_schema
from florilegium.partitions.spec import DatasetSpec
from tests.support import CACHE

RNG = np.random.default_rng(0)
FLOATS = RNG.normal(size=(6, 5, 4, 3)).astype(np.float32)  # (n, height, width, channels)


@pytest.fixture(scope="module")
def spec() -> DatasetSpec:
    from pathlib import Path

    return read_schema(Path(array_dataset((FLOATS, [0, 1] * 3), cache_dir=str(CACHE))))


def test_float_images_are_transposed_not_reshaped(spec: DatasetSpec) -> None:
    first = torch.from_numpy(FLOATS).permute(0, 3, 1, 2)
    assert torch.equal(read_rows(FLOATS, spec).x, first)
    assert torch.equal(read_rows(first, spec).x, first)
    assert torch.equal(read_rows([*FLOATS], spec).x, first)


def test_grey_images_need_no_axis_of_channels() -> None:
    spec = find_spec("digits")
    pixels = RNG.integers(0, 17, size=(4, 8, 8), dtype=np.uint8)
    expected = read_rows(pixels[..., None], spec).x
    assert torch.equal(read_rows(pixels, spec).x, expected)
    assert torch.equal(read_rows(pixels[:, None], spec).x, expected)


def test_a_shape_that_may_be_either_is_the_datasets_own(spec: DatasetSpec) -> None:
    square = DatasetSpec(**{**vars(spec), "shape": (3, 3, 3)})
    x = RNG.normal(size=(2, 3, 3, 3))
    np.testing.assert_array_equal(laid_out(square, x, "x"), x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (FLOATS[0], r"inputs: rows have shape \(5, 4, 3\), 'arrays' needs .*; this is a single row, give x\[None\]"),
        (FLOATS[:, 1:], r"rows have shape \(6, 4, 4, 3\), 'arrays' needs \(n, 3, 5, 4\) or \(n, 5, 4, 3\)$"),
        ([FLOATS[0], FLOATS[1, 1:]], "the rows have several shapes"),
        (3.0, r"rows have shape \(\), 'arrays' needs"),
        (np.full((6, 5, 4, 3), "a"), "rows are no numbers"),
    ],
)
def test_other_shapes_are_refused(x: object, message: str, spec: DatasetSpec) -> None:
    with pytest.raises(DataError, match=message):
        read_rows(x, spec)


def test_single_images_and_floats_are_refused() -> None:
    spec = find_spec("digits")
    with pytest.raises(DataError, match=r"pictures have shape \(8, 8\), .*a single row, give x\[None\]"):
        read_rows(np.zeros((8, 8), np.uint8), spec)
    with pytest.raises(DataError, match="pictures are float64, 'digits' needs uint8, 0 to 255"):
        read_rows(np.zeros((2, 8, 8)), spec)


def test_tables_need_columns() -> None:
    with pytest.raises(DataError, match="'adult' has columns; give a DataFrame or a mapping"):
        read_rows(np.zeros((2, 3)), find_spec("adult"))
