"""Columns of numbers, against exact rational arithmetic: no digit is lost before they are scaled."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilegium.common.errors import DataError
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.arrays import array_dataset
from florilegium.partitions.sources.numbers import arrays_of, moments, numbers_of, standardised, targets_of
from florilegium.partitions.sources.tables import TableSchema, encode_table
from tests.support import CACHE


def _right(values: Sequence[Any], mean: float, std: float) -> np.ndarray:
    """Return (x − mean) / std, computed with fractions."""
    return np.array([float((Fraction(value) - Fraction(mean)) / Fraction(std)) for value in values])


CLOCK = 1_700_000_000 + np.random.default_rng(0).integers(0, 600, 200)
SCALES: dict[str, tuple[Sequence[Any], pa.DataType]] = {
    "seconds": (CLOCK.tolist(), pa.int64()),
    "seconds as floats": ((CLOCK + 0.25).tolist(), pa.float64()),
    "nanoseconds": ((CLOCK * 10**9).tolist(), pa.int64()),
    "ten nanoseconds": ((1_700_000_000 * 10**9 + np.arange(10)).tolist(), pa.int64()),
    "ids": ([2**63 + 7 * i for i in range(50)], pa.uint64()),
    "all of int64": ([-(2**63), 2**63 - 1, 0, 5], pa.int64()),
    "bytes": ([0, 255, 3], pa.uint8()),
    "decimals": ([Decimal("1000000000.25") + i for i in range(9)], pa.decimal128(20, 2)),
    "halves": ([0.5, 0.25, 2.0], pa.float16()),
    "huge": ([1e300, -1e300, 3e299], pa.float64()),
    "tiny": ([1e-300, 3e-300, 7e-300], pa.float64()),
}


@pytest.mark.parametrize("name", SCALES)
def test_numbers_are_standardised_before_they_are_rounded(name: str) -> None:
    values, kind = SCALES[name]
    cells = np.array(values, np.float16) if kind == pa.float16() else values  # older versions take no Python numbers
    column = pa.chunked_array([pa.array(cells[:2], kind), pa.array(cells[2:], kind)])
    mean, std = moments(column, "x")
    exact = [Fraction(value) for value in values]
    average = sum(exact, Fraction(0)) / len(exact)
    deviation = max(abs(value - average) for value in exact)  # in its units the squares fit into floats
    squares = sum(((value - average) / deviation) ** 2 for value in exact) / len(exact)
    assert std == pytest.approx(float(deviation) * float(squares) ** 0.5, rel=1e-9)
    assert abs(Fraction(mean) - average) <= abs(average) * Fraction(1, 2**52) + Fraction(std) / 10**9
    features = encode_table(TableSchema({"t": (mean, std)}), {"t": column}, "x")[:, 0]
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, _right(values, mean, std), atol=1e-6, rtol=1e-6)
    assert len(np.unique(features)) == len(set(values))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9), st.floats(-1e19, 1e19))
def test_any_integers_are_standardised_exactly(values: list[int], mean: float) -> None:
    spread = float(max(abs(value - int(mean)) for value in values) or 1)
    np.testing.assert_allclose(
        standardised(pa.chunked_array([pa.array(values, pa.int64())]), mean, spread, "x"),
        _right(values, mean, spread), atol=1e-9,
    )  # fmt: skip


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e300, -1e-300, 1.7e9 + 0.1])
def test_a_constant_column_has_no_deviation_by_rounding(value: float) -> None:
    assert moments(pa.chunked_array([pa.array([value] * 7)]), "x") == (value, 0.0)


KINDS: list[tuple[list[Any], Any]] = [
    ([1.0, None, 2.0, None], None), ([1.0, float("nan"), 2.0, float("inf")], None), ([1, None, 2, None], pa.int64()),
    ([Decimal(1), None, Decimal(2), None], pa.decimal128(9, 2)), (["1", None, "2", None], None),
    ([True, None] * 2, None),
]  # fmt: skip


@pytest.mark.parametrize(("cells", "kind"), KINDS)
def test_a_missing_number_is_named_by_row_and_column(cells: list[Any], kind: Any) -> None:
    with pytest.raises(DataError, match="a, train: column 'age' has no number in row 1, 2 rows in all"):
        numbers_of(pa.chunked_array([pa.array(cells[:1], kind), pa.array(cells[1:], kind)]), "a, train: column 'age'")


def test_texts_are_read_as_numbers_or_refused_by_row() -> None:
    assert numbers_of([" 39", "1e3 "], "x").tolist() == [39.0, 1000.0]
    for cells, said in (
        (["1", "old"], "in row 1: 'old'"), ([1, "old"], "x holds something"), ([[1.0]], "no number: list"),
        ([b"1"], "no number: binary"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            numbers_of(cells, "x")


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float64()), pa.list_(pa.float32()), pa.large_list(pa.int64()), pa.list_(pa.float64(), 6),
        pa.list_(pa.list_(pa.float64())), pa.list_(pa.list_(pa.float32(), 3), 2), pa.list_(pa.decimal128(9, 1)),
    ],
)  # fmt: skip
def test_lists_of_any_nesting_are_arrays(kind: pa.DataType) -> None:
    expected = np.arange(30, dtype=np.float32).reshape(5, 2, 3) / 2
    if pa.types.is_large_list(kind):
        expected = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    flat = not (pa.types.is_list(kind.value_type) or pa.types.is_fixed_size_list(kind.value_type))
    rows = (expected.reshape(5, 6) if flat else expected).tolist()
    if pa.types.is_large_list(kind):
        rows = [[int(cell) for cell in row] for row in rows]
    if pa.types.is_decimal(kind.value_type):
        rows = [[Decimal(str(cell)) for cell in row] for row in rows]
    whole = pa.array([rows[0], *rows], kind)
    column = pa.chunked_array([whole[1:3], pa.array([], kind), whole[3:]])  # chunks that do not start at their own 0
    found = arrays_of(column, (2, 3), "x")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([[1.0, 2.0], [1.0]], r"lists of 2 and of 1 numbers .row 1."),
        ([[1.0], [1.0]], "must hold lists of 2 numbers: row 0 has 1"),
        ([[1.0, 2.0], None], "no number in row 1, 1 rows in all"),
        ([[1.0, 2.0], [None, 1.0], [None, None]], "no number in row 1, 2 rows in all"),
        ([[1.0, 2.0], [float("nan"), 1.0]], "no number in row 1, 1 rows in all"),
        ([[1.0, 2.0], [1e39, 1.0]], "in row 1 that is too large for 32-bit floats"),
        ([["a", "b"]], "no number in row 0: 'a'"),
        ([1.0, 2.0], "must hold lists of 2 numbers: row 0 has 1"),
    ],
)
def test_a_list_that_does_not_fit_is_named_by_row(cells: list[Any], said: str) -> None:
    with pytest.raises(DataError, match=f"column 'v' .*{said}"):
        arrays_of(pa.chunked_array([pa.array(cells)]), (2,), "column 'v'")


def test_vectors_need_little_more_memory_than_their_size() -> None:
    values = np.random.default_rng(0).normal(size=(4000, 384))
    column = pa.chunked_array([pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 384)])
    tracemalloc.start()
    features = encode_table(TableSchema(vectors={"v": 384}), {"v": column}, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(features, values.astype(np.float32))
    assert peak < 3 * features.nbytes  # the result, one copy, and a mask; Python lists took seventeen times the size


def test_targets_keep_what_tells_them_apart() -> None:
    np.testing.assert_array_equal(targets_of([1, 2, 2**24], "y"), np.array([1, 2, 2**24], np.float32))
    assert targets_of([CLOCK[0]], "y").shape == (1,)  # a device may have a single row
    with pytest.raises(DataError, match=r"column 'y' has numbers that differ too little, near 1\.7e.09, for 32-bit"):
        targets_of(CLOCK, "column 'y'")
    with pytest.raises(DataError, match="in row 1 that is too large for 32-bit floats"):
        targets_of([1.0, 1e39], "y")
    x = np.zeros((200, 1), np.float32)
    with pytest.raises(DataError, match="column 'y' has numbers that differ too little"):
        array_dataset((x, CLOCK.astype(np.float64)), cache_dir=str(CACHE))
    with pytest.raises(DataError, match="column 1 of x has numbers that differ too little"):
        array_dataset((np.stack([np.ones(200) / 3, CLOCK.astype(np.float64)], 1), CLOCK % 2), cache_dir=str(CACHE))


def _keys(folder: Path, **keys: Any) -> FederationSettings:
    return FederationSettings(dataset=str(folder), cache_dir=str(CACHE), **keys)


def test_an_inferred_scale_fits_its_column(tmp_path: Path) -> None:
    columns = {
        "clock": pa.array(CLOCK), "nanoseconds": pa.array(CLOCK * 10**9),
        "id": pa.array(np.arange(200)), "unsigned": pa.array([2**63 + i * 10**9 for i in range(200)], pa.uint64()),
        "price": pa.array([Decimal(i) / 4 for i in range(200)], pa.decimal128(9, 2)), "third": pa.array([1 / 3] * 200),
        "label": pa.array([Decimal(i % 2) for i in range(200)], pa.decimal128(9, 2)),
    }  # fmt: skip
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "train.parquet")
    dataset = load_dataset(_keys(tmp_path))
    assert dataset.spec.table is not None
    assert list(dataset.spec.table.numbers) == ["clock", "nanoseconds", "unsigned", "price"]
    np.testing.assert_allclose(dataset.train.x.mean(axis=0, dtype=np.float64), 0, atol=1e-4)
    np.testing.assert_allclose(dataset.train.x.std(axis=0, dtype=np.float64), 1, atol=1e-4)
    assert dataset.spec.labels == (0, 1)
    columns["id"] = columns["key"] = pa.array([2**63 + i for i in range(200)], pa.uint64())
    (tmp_path / "keys").mkdir()
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "keys" / "train.parquet")
    with pytest.raises(DataError, match=r"column 'key' has numbers that differ too little, near .* for 64-bit floats"):
        load_dataset(_keys(tmp_path / "keys"))


def test_a_fraction_among_the_test_labels_is_no_class(tmp_path: Path) -> None:
    for part, labels in (("train", [0.0, 1.0] * 4), ("test", [0.0, 0.5] * 4)):
        pyarrow.parquet.write_table(pa.table({"a": np.arange(8.0), "label": labels}), tmp_path / f"{part}.parquet")
    with pytest.raises(DataError, match=r"classes that no training row has: 0\.5"):
        load_dataset(_keys(tmp_path))


def test_numbers_in_csv_files_that_floats_would_round_are_names(tmp_path: Path) -> None:
    for client in ("a", "b"):
        rows = [f"{10**20 + i % 2},{i},{'xy'[i % 2]}\n" for i in range(8)]
        (tmp_path / f"{client}.csv").write_text("user,size,label\n" + "".join(rows))
    dataset = load_dataset(_keys(tmp_path))
    assert set(dataset.train.clients["user"].tolist()) == {str(10**20), str(10**20 + 1)}
