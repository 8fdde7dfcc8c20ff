"""Columns of dates as numbers: days since 1970-01-01, and parts that come again: of the year, the week, the day."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.sources.columns import is_text
from florilegium.partitions.sources.date_parts import DAYS, PERIODS

ISO = ""
"""Stands for the formats of ISO 8601: 2024-03-31, 2024-03-31T14:30:00."""
_FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d.%m.%Y %H:%M", "%Y%m%d")
DATE_LIKE = (
    r"^\s*([0-9]{4}[-./][0-9]{1,2}[-./][0-9]{1,2}|[0-9]{1,2}[-./][0-9]{1,2}[-./][0-9]{4})"
    r"([ T][0-9]{1,2}:[0-9]{2}.*)?\s*$"
)
"""Pattern of texts that look like dates, with years of four digits."""
_MICROSECONDS = 86_400 * 10**6


def is_date(column: pa.ChunkedArray, form: str = ISO) -> bool:
    """Return whether a column holds dates: of Arrow's types, or texts that look like dates, missing ones aside.

    Years have four digits, unless a ``form`` is given that says otherwise.
    """
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        return True
    if not is_text(column.type):
        return False
    given = pc.unique(column.cast(pa.string()).drop_null())
    given = given.filter(pc.not_equal(pc.utf8_trim_whitespace(given), ""))
    if form != ISO and len(given):
        return _read(pa.chunked_array([given]), form) is not None
    return bool(len(given)) and bool(pc.all(pc.match_substring_regex(given, DATE_LIKE)).as_py())


def format_of(column: pa.ChunkedArray, where: str) -> str:
    """Return the format of a column of dates: :data:`ISO` for Arrow's types and ISO 8601, or one for ``strptime``.

    Raises:
        ConfigurationError: if no format fits all cells, or two do, such as 01/02/2024, so that the key must say it.
    """
    if not is_text(column.type) or _read(column, ISO) is not None:
        return ISO
    fitting = [form for form in _FORMATS if _read(column, form) is not None]
    if len(fitting) != 1:
        said = f"{' and '.join(fitting)} both fit" if fitting else "no known format fits all of them"
        raise ConfigurationError(
            f"{where} holds dates, and {said}: name theirs with key date-format, or drop the column"
        )
    return fitting[0]


def _read(column: pa.ChunkedArray, form: str) -> pa.ChunkedArray | None:
    """Return the times of a column of text, in microseconds, null where a cell is missing; None if one does not fit."""
    text = pc.utf8_trim_whitespace(column.cast(pa.string()))
    text = pc.if_else(pc.equal(text, ""), None, text)
    if form == ISO:
        for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC")):  # without, or with, a time zone
            with suppress(pa.ArrowException):
                return text.cast(kind).cast(pa.timestamp("us"))
        return None
    # Arrow takes 31.02. for 2 March, and 24 for the year 24.
    coded = text.combine_chunks().dictionary_encode()
    try:
        times = [datetime.strptime(cell, form).replace(tzinfo=None) for cell in coded.dictionary.to_pylist()]
    except ValueError:
        return None
    return pa.chunked_array([pa.array(times, pa.timestamp("us")).take(coded.indices)])


def days_of(column: pa.ChunkedArray, form: str, where: str) -> NDArray[np.float64]:
    """Return a column of dates as days since 1970-01-01, (n,), with fractions; NaN where one is missing.

    Raises:
        DataError: if a cell is no date of this format; with the first such row.
    """
    if is_text(column.type):
        times = _read(column, form)
        if times is None:
            wrong = _wrong(column, form)
            raise DataError(
                f"{where} holds no date in row {wrong}: {column[wrong].as_py()!r}; expected "
                f"{form or 'dates such as 2024-03-31'}"
            )
    else:
        times = column.cast(pa.timestamp("us"), safe=False)
    numbers = times.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.float64)
    return np.asarray(np.where(times.is_null().to_numpy(zero_copy_only=False), np.nan, numbers / _MICROSECONDS))


def _wrong(column: pa.ChunkedArray, form: str) -> int:
    return next(row for row in range(len(column)) if _read(column.slice(row, 1), form) is None)


def parts_of(days: NDArray[np.float64], mean: float, std: float, parts: Sequence[str]) -> NDArray[np.float64]:
    """Return the features of days (n,): (days − mean) / std, and sine and cosine of each other part."""
    columns: list[NDArray[Any]] = []
    for part in parts:
        if part == DAYS:
            columns.append((days - mean) / std)
        else:
            angle = 2 * np.pi * days / PERIODS[part]
            columns += [np.sin(angle), np.cos(angle)]
    return np.stack(columns, axis=1)
