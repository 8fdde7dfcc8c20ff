"""Read files of tables, parquet and CSV, before anything is known of their columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from florilegium.common.errors import DataError
from florilegium.partitions.sources.compact import read_table

_BLANK = b"blank lines"


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
        table = read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error
    if table.num_rows == 0 and not may_be_empty:
        raise DataError(f"{path} has no rows")
    return table


def read_shards(paths: Sequence[Path], *, may_be_empty: bool = False) -> pa.Table:
    """Read parquet files as one table, whose metadata are those of the first; raises as :func:`read_parquet`."""
    first, *others = [read_parquet(path, may_be_empty=may_be_empty) for path in paths]
    for path, table in zip(paths[1:], others, strict=True):
        if not table.schema.equals(first.schema):
            raise DataError(f"{path} has other columns, or columns of other types, than {paths[0]}")
    return pa.concat_tables([first, *(table.replace_schema_metadata(first.schema.metadata) for table in others)])


def first_line(path: Path) -> list[str]:
    """Return the cells of the first line of a CSV file; raises as :func:`read_texts`."""
    with _readable(path), pyarrow.csv.open_csv(path) as reader:
        names: list[str] = reader.schema.names
    return names


def read_texts(path: Path, layouts: Sequence[Sequence[str]] = ()) -> pa.Table:
    """Read a CSV file, all columns as text.

    In a file of one column a blank line is a row without a value. In others it is no row; :func:`blank_lines` says how
    many there are. Blank lines at the end do not count.

    Args:
        path: the file.
        layouts: names of the columns of a file without a line of names; the first of as many columns counts. A file
            that begins with exactly these names is read, too.

    Raises:
        DataError: if the file is unreadable, or has another number of columns than are named.
    """
    names, lines = first_line(path), pyarrow.csv.ReadOptions()
    if layouts:
        first, names = names, next(([*each] for each in layouts if len(each) == len(names)), [])
        if not names:
            raise DataError(
                f"{path} has {len(first)} columns, and {len(layouts[0])} are named: {', '.join(layouts[0])}"
            )
        lines.column_names, lines.skip_rows = names, int([name.strip() for name in first] == names)
    refuse_twins(names, str(path))
    options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    with _readable(path):
        table = pyarrow.csv.read_csv(path, convert_options=options, read_options=lines)
        _refuse_repeated_names(table, path)
        content = path.read_bytes()
        if not re.search(rb"\n\r?\n|\r\r", content):
            return table
        lines.skip_rows += _newlines(content[: len(content) - len(content.lstrip(b"\r\n"))])
        parsing = pyarrow.csv.ParseOptions(ignore_empty_lines=False)
        whole = pyarrow.csv.read_csv(path, convert_options=options, read_options=lines, parse_options=parsing)
    last = max(0, _newlines(content[len(content.rstrip(b"\r\n")) :]) - 1)
    if len(names) == 1:
        return whole.slice(0, whole.num_rows - last)
    blank = whole.num_rows - last - table.num_rows
    return table.replace_schema_metadata({_BLANK: str(blank)} if blank else None)


def _refuse_repeated_names(table: pa.Table, path: Path) -> None:
    """Raise :class:`DataError` if rows repeat the line of names, as those of files put behind each other do."""
    found = None
    for name in table.column_names if table.num_columns > 1 else ():
        same = pyarrow.compute.equal(pyarrow.compute.utf8_trim_whitespace(table.column(name)), name.strip())
        found = same if found is None else pyarrow.compute.and_(found, same)
        if not pyarrow.compute.any(found).as_py():
            return
    if found is not None:
        rows = pyarrow.compute.indices_nonzero(found.fill_null(False)).to_pylist()
        raise DataError(
            f"{path}: row {rows[0]} repeats the line of names ({len(rows)} rows do), as in files that were put behind "
            "each other; remove these lines"
        )


def blank_lines(table: pa.Table) -> int:
    """Return how many lines of a CSV file of several columns are blank, and so no rows of ``table``."""
    return int((table.schema.metadata or {}).get(_BLANK, b"0"))


def _newlines(content: bytes) -> int:
    return content.count(b"\n") or content.count(b"\r")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if path.is_file() and not path.read_bytes().strip():
            raise DataError(f"{path} is empty; a CSV file starts with a line of column names") from error
        raise DataError(f"{path} is not a readable CSV file: {error}") from error
