"""Read columns of lists of numbers from parquet files, with little more memory than the numbers themselves take.

PyArrow reads such a column as a whole, with several times its size. Here a few rows at a time are copied to one array,
which the column of the returned table then is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from florilegium.partitions.sources.columns import is_list

_ROWS = 1024
"""Rows that are copied at a time."""
_BUFFER = 1 << 16
"""Bytes of a file that are read at a time."""


def read_table(path: Path) -> pa.Table:
    """Return the content of a parquet file, as :func:`pyarrow.parquet.read_table` does, lists of numbers compact."""
    with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
        schema = file.schema_arrow
        lists = {f.name for f in schema if is_list(f.type) and pa.types.is_primitive(f.type.value_type)}
    if not lists:
        return pq.read_table(path)
    others = [field.name for field in schema if field.name not in lists]
    columns = {name: _lists(path, schema.field(name)) for name in lists}
    pa.default_memory_pool().release_unused()
    rest = pq.read_table(path, columns=others)
    columns |= {name: rest.column(name) for name in others}
    return pa.table([columns[field.name] for field in schema], schema=schema)


def _lists(path: Path, field: pa.Field) -> pa.ChunkedArray:
    """Return a column of lists; as PyArrow reads it if a list or a number is missing, or lengths differ."""
    out: NDArray[np.generic] | None = None
    start = 0
    with pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
        rows = file.metadata.num_rows
        for batch in file.iter_batches(_ROWS, columns=[field.name], use_threads=False):
            array = batch.column(0)
            values = array.flatten()
            size = len(values) // max(1, len(array))
            if out is None and len(array) and not pa.types.is_boolean(values.type):
                out = np.empty((rows, size), values.type.to_pandas_dtype())
            if out is None or not _even(array, values, out.shape[1]):
                return pq.read_table(path, columns=[field.name]).column(0)
            out[start : start + len(array)] = values.to_numpy().reshape(len(array), size)
            start += len(array)
    if out is None:
        return pq.read_table(path, columns=[field.name]).column(0)
    each = max(1, (2**31 - 1) // max(1, out.shape[1]))  # rows whose numbers 32-bit offsets can count
    return pa.chunked_array([_of(out[row : row + each], field.type) for row in range(0, rows, each)], field.type)


def _even(array: pa.Array, values: pa.Array, size: int) -> bool:
    if array.null_count or values.null_count:
        return False
    if pa.types.is_fixed_size_list(array.type):
        return True
    lengths = np.diff(array.offsets.to_numpy())
    return bool((lengths == size).all())


def _of(numbers: NDArray[np.generic], kind: pa.DataType) -> pa.Array:
    values = pa.array(numbers.reshape(-1)).cast(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    wide = pa.types.is_large_list(kind)
    offsets = np.arange(len(numbers) + 1, dtype=np.int64 if wide else np.int32) * numbers.shape[1]
    return (pa.LargeListArray if wide else pa.ListArray).from_arrays(pa.array(offsets), values, type=kind)
