"""Where the rows of a table come from: which file, and which row of it, for messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from florilegium.common.errors import DataError

_FILES = b"florilegium.files"
LEFT_OUT = "left out: "
"""How a line begins that says which rows, files or splits of a dataset are not used, and how many."""
Origins = Sequence[tuple[str, int]]
"""Files, and how many rows of the table come from each, in order; "": rows whose place is not known."""


def noted(table: pa.Table, origins: Origins) -> pa.Table:
    """Return the table with a note of its rows' files in its metadata."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), _FILES: json.dumps(origins)})


@contextmanager
def in_file(table: pa.Table) -> Iterator[None]:
    """Context for reading a table: an error that names a row says also which row of which file this is.

    Raises:
        DataError: with that said.
    """
    try:
        yield
    except DataError as error:
        found = re.search(r"\brow (\d+)\b", str(error))
        place = _place(table, int(found[1])) if found else ""
        if not place:
            raise
        raise DataError(f"{error}; row {found[1] if found else ''} is {place}") from error


def _place(table: pa.Table, row: int) -> str:
    for file, rows in json.loads((table.schema.metadata or {}).get(_FILES, b"[]")):
        if row < rows:
            return f"row {row + 1} of {file}, counted from 1 without the header" if file else ""
        row -= rows
    return ""
