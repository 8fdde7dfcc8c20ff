"""Columns of lists of numbers: read as PyArrow reads them, with about twice the memory of the numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from florilegium.partitions.sources import compact
from florilegium.partitions.sources.numbers import arrays_of

NUMBERS = np.arange(24, dtype=np.float32).reshape(8, 3)
_ROWS, _LENGTH = 40_000, 256
_MEASURE = """
import sys, tempfile
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.device_data import read_device
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources.schema import read_schema
from pathlib import Path

def read(folder, how):
    if how == "device":
        return read_device(folder, read_schema(folder))
    return load_dataset(SourceSettings.model_validate({"dataset": str(folder), "cache_dir": tempfile.mkdtemp()}))

def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

read(Path(sys.argv[1]) / "small", sys.argv[2])
before = peak()
read(Path(sys.argv[1]) / "large", sys.argv[2])
print((peak() - before) / 1024)
"""


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.int16()), pa.list_(pa.float32(), 3)]
)
def test_columns_are_those_that_pyarrow_reads(
    tmp_path: Path, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact, "_ROWS", 3)
    table = pa.table({"a": [*"abcdefgh"], "v": pa.array(NUMBERS.tolist(), kind), "b": range(8)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=5)
    found, expected = compact.read_table(tmp_path / "t.parquet"), pq.read_table(tmp_path / "t.parquet")
    assert found.equals(expected)
    assert found.schema.equals(expected.schema, check_metadata=True)
    np.testing.assert_array_equal(arrays_of(found.column("v"), (3,), "v"), NUMBERS)


@pytest.mark.parametrize(
    "rows", [[[1.0], [1.0, 2.0]], [[1.0, None]], [None, [1.0]], [], [[]], [[], []], [[True], [False]]]
)
def test_what_is_no_array_is_left_to_pyarrow(tmp_path: Path, rows: list[object]) -> None:
    kind = None if rows and rows[0] == [True] else pa.list_(pa.float32())
    pq.write_table(pa.table({"v": pa.array(rows, kind)}), tmp_path / "t.parquet")
    assert compact.read_table(tmp_path / "t.parquet").equals(pq.read_table(tmp_path / "t.parquet"))


@pytest.mark.parametrize("how", ["folder", "device"])
def test_vectors_need_twice_their_memory(tmp_path: Path, how: str) -> None:
    """The numbers take 39 MiB: once as read, once as tensors or in the cache; 32 MiB more for buffers."""
    x = np.random.default_rng(0).normal(size=(_ROWS, _LENGTH)).astype(np.float32)
    for name, rows in (("small", 500), ("large", _ROWS)):
        (tmp_path / name).mkdir()
        vectors = pa.FixedSizeListArray.from_arrays(x[:rows].ravel(), _LENGTH).cast(pa.list_(pa.float32()))
        pq.write_table(pa.table({"v": vectors, "y": np.arange(rows) % 2}), tmp_path / name / "train.parquet")
        schema = f'label = "y"\nlabels = [0, 1]\n[vectors]\nv = {_LENGTH}\n'
        (tmp_path / name / "schema.toml").write_text(schema)
    done = subprocess.run([sys.executable, "-c", _MEASURE, tmp_path, how], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 2 * x.nbytes / 2**20 + 32
