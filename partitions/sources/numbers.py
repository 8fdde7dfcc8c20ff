"""Columns of numbers as arrays, with all their digits: no Python objects, and rounded only after they are scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.columns import is_list

Cells: TypeAlias = "pa.ChunkedArray | Sequence[object] | NDArray[Any]"
"""A column of a table, or the values of one in a list or an array."""
_EXACT = 2**53
"""Whole numbers up to this are exact as double-precision numbers."""
_HALF = 2.0**62
"""Differences of 64-bit integers below this do not overflow, nor do their rounding errors matter."""
LOST = 1e-3
"""Rounding error to single precision, in units of the range of the numbers, that is refused."""


def numbers_of(cells: Cells, where: str) -> NDArray[Any]:
    """Return a column of numbers, (n,): integers of their own type, all else in double precision.

    Texts are read as numbers, and booleans as 0 and 1.

    Args:
        cells: the column.
        where: the column, as error messages name it.

    Raises:
        DataError: if a cell is missing, no number, or not finite; with the first such row and how many there are.
    """
    column = column_of(cells, where)
    if column.null_count:
        refuse_missing(column.is_null().to_numpy(), where)
    return _leaf(column, where, 1, 0)


def standardised(cells: Cells, mean: float, std: float, where: str) -> NDArray[np.float64]:
    """Return (x − mean) / std of a column of numbers x, (n,), in double precision; large integers lose no digit.

    Raises:
        DataError: as :func:`numbers_of`.
    """
    numbers = numbers_of(cells, where)
    if numbers.dtype.kind == "f":
        return (numbers - mean) / std
    center = round(mean)
    return (_less(numbers, center) - (mean - center)) / std


def moments(cells: Cells, where: str) -> tuple[float, float]:
    """Return mean and standard deviation of a column of numbers; the deviation is 0 if, and only if, all are equal.

    Raises:
        DataError: as :func:`numbers_of`.
    """
    numbers = numbers_of(cells, where)
    low, high = numbers.min(), numbers.max()
    if low == high:
        return float(low), 0.0
    if numbers.dtype.kind == "f":
        center: float = low / 2 + high / 2
        offsets = numbers - center
    else:
        center = (int(low) + int(high)) // 2
        offsets = _less(numbers, int(center))
    # In units of the largest, the squares neither overflow nor vanish.
    scale = float(np.abs(offsets).max())
    unit = offsets / scale
    return float(center + scale * unit.mean()), float(scale * unit.std())


def arrays_of(
    cells: Cells, shape: tuple[int, ...], where: str, *, tokens: bool = False, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return lists of numbers, nested or flat, as an array (n, *shape): float32, or int64 ``tokens``.

    Args:
        cells: the n lists.
        shape: shape of the numbers of each.
        where: name of the column in error messages.
        tokens: whether they are tokens.
        out: where to write the numbers, (n, size); None: to a new array, or if the column is one array of such numbers
            already, they are not copied, and must not be changed.

    Raises:
        DataError: if a row has more or fewer numbers, or one that is missing, not finite, too large for float32, or (of
            tokens) no integer; with the first such row.
    """
    column, size = column_of(cells, where), math.prod(shape)
    kind = np.dtype(np.int64 if tokens else np.float32)
    copied = out is not None or column.num_chunks != 1
    array = out if out is not None else np.empty((len(column) if copied else 0, size), kind)
    start = 0
    for chunk in column.chunks:
        values, each = _flat(chunk, where, start)
        if len(chunk) and each != size:
            raise DataError(f"{where} must hold {_lists(shape)}: row {start} has {each}")
        if tokens and len(chunk) and not pa.types.is_integer(values.type):
            raise DataError(f"{where} must hold {_lists(shape)}, integers: row {start} holds {values.type}")
        numbers = _leaf(values, where, size, start).reshape(len(chunk), size)
        if copied or numbers.dtype != kind:
            array = array if copied else np.empty((len(column), size), kind)
            with np.errstate(over="ignore"):
                array[start : start + len(chunk)] = numbers
        else:
            array = numbers
        part = array[start : start + len(chunk)]
        if not tokens and not np.isfinite(part).all():
            row = start + int(np.argmin(np.isfinite(part).all(axis=1)))
            raise DataError(f"{where} has a number in row {row} that is too large for 32-bit floats; scale the numbers")
        start += len(chunk)
    return array.reshape(len(array), *shape)


def targets_of(cells: Cells, where: str) -> NDArray[np.float32]:
    """Return a column of numbers to predict, (n,), in single precision.

    Raises:
        DataError: as :func:`numbers_of`, and if single precision would round away what tells the numbers apart.
    """
    exact = numbers_of(cells, where).astype(np.float64)
    with np.errstate(over="ignore"):
        targets = exact.astype(np.float32)
    if not np.isfinite(targets).all():
        row = int(np.argmin(np.isfinite(targets)))
        raise DataError(f"{where} has a number in row {row} that is too large for 32-bit floats; scale the numbers")
    if len(exact) and np.abs(targets - exact).max() > LOST * np.ptp(exact) > 0:
        raise DataError(
            f"{where} has numbers that differ too little, near {np.abs(exact).max():g}, for 32-bit floats; subtract a "
            "constant, such as their mean"
        )
    return targets


def _less(numbers: NDArray[np.integer[Any]], center: int) -> NDArray[np.float64]:
    """Return integers minus ``center``; the differences are exact before they are rounded to double precision."""
    about: NDArray[np.float64] = numbers.astype(np.float64) - float(center)
    if np.abs(about).max(initial=0) >= _HALF or np.abs(numbers.astype(np.float64)).max(initial=0) <= _EXACT:
        return about
    wrapped = numbers.astype(np.uint64) - np.uint64(center % 2**64)  # modulo 2⁶⁴, as unsigned numbers are
    return wrapped.view(np.int64).astype(np.float64)


def column_of(cells: Cells, where: str = "the column") -> pa.ChunkedArray:
    """Return the cells as an Arrow column; raise :class:`DataError` if they have no common type."""
    if isinstance(cells, pa.ChunkedArray):
        return cells
    try:
        return pa.chunked_array([pa.array(cells, from_pandas=False)])
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise DataError(f"{where} holds something that is no number: {error}") from error


def _flat(array: pa.Array, where: str, start: int) -> tuple[pa.Array, int]:
    """Return the numbers in the nested lists of an array of rows, end to end, and how many each row has."""
    each = 1
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        if array.null_count:
            refuse_missing(array.is_null().to_numpy(zero_copy_only=False).reshape(-1, each).any(axis=1), where, start)
        if not is_list(array.type) or not len(array):
            return array, each
        lengths = pc.list_value_length(array).to_numpy(zero_copy_only=False)
        if (other := np.flatnonzero(lengths != lengths[0])).size:
            raise DataError(
                f"{where} has lists of {lengths[0]} and of {lengths[other[0]]} numbers (row "
                f"{start + int(other[0]) // each}); all need the same length"
            )
        each *= int(lengths[0])
        array = array.flatten()


def _leaf(values: Any, where: str, each: int, start: int) -> NDArray[Any]:
    """Return the numbers of an Arrow array without missing values, of which ``each`` belong to a row."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = _read(values, where, each, start)
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_decimal(kind):
        values = values.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or not len(values)):
        raise DataError(f"{where} holds something that is no number: {kind}")
    chunked = isinstance(values, pa.ChunkedArray)
    numbers: NDArray[Any] = values.to_numpy() if chunked else values.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind not in "iu":
        numbers = numbers.astype(np.float64, copy=False) if numbers.dtype != np.float32 or each == 1 else numbers
        if not np.isfinite(numbers).all():
            refuse_missing(~np.isfinite(numbers).reshape(-1, each).all(axis=1), where, start)
    return numbers


def _read(texts: Any, where: str, each: int, start: int) -> Any:
    try:
        return pc.cast(pc.utf8_trim_whitespace(texts), pa.float64())
    except pa.ArrowException as error:
        wrong = [(row, text) for row, text in enumerate(texts.to_pylist()) if not is_float(text)]
        row, text = wrong[0] if wrong else (0, str(error))
        raise DataError(f"{where} holds something that is no number in row {start + row // each}: {text!r}") from error


def is_float(text: str) -> bool:
    """Return whether Python reads a text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def refuse_missing(rows: NDArray[np.bool_], where: str, start: int = 0) -> None:
    """Raise :class:`DataError` for a column that has no number in some ``rows``, of which ``start`` came before."""
    raise DataError(
        f"{where} has no number in row {start + int(np.argmax(rows))}, {int(rows.sum())} rows in all: missing, NaN or "
        "infinite; fill in or remove these rows"
    )


def _lists(shape: tuple[int, ...]) -> str:
    return f"lists of {'×'.join(map(str, shape))} numbers" if shape else "numbers"
