"""Read files of tables, parquet and CSV, before anything is known of their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from florilegium.common.errors import DataError


def refuse_twins(names: Iterable[str], where: str) -> None:
    """Raise :class:`DataError` if two columns of the table ``where`` have one name, so that neither can be meant."""
    counts = Counter(names)
    if twins := [name for name, times in counts.items() if times > 1]:
        raise DataError(f"{where} has {counts[twins[0]]} columns '{twins[0]}'; rename all but one, or leave them out")


def read_parquet(path: Path, *, may_be_empty: bool = False) -> pa.Table:
    """Read a parquet file.

    Raises:
        DataError: if the file is missing or unreadable, or has no rows unless it ``may_be_empty``.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        refuse_twins(pyarrow.parquet.read_schema(path).names, str(path))
        table = pyarrow.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error
    if table.num_rows == 0 and not may_be_empty:
        raise DataError(f"{path} has no rows")
    return table


def read_texts(path: Path) -> pa.Table:
    """Read a CSV file, all columns as text.

    Raises:
        DataError: if the file is unreadable.
    """
    try:
        with pyarrow.csv.open_csv(path) as reader:
            names = reader.schema.names
        refuse_twins(names, str(path))
        options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        return pyarrow.csv.read_csv(path, convert_options=options)
    except (OSError, pa.ArrowException) as error:
        if path.is_file() and not path.read_bytes().strip():
            raise DataError(f"{path} is empty; a CSV file starts with a line of column names") from error
        raise DataError(f"{path} is not a readable CSV file: {error}") from error
