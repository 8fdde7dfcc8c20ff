"""Names of clients in a column of any type: compared by value, and kept as the user wrote them.

A column of integers with a missing value is saved as floats by pandas, macOS writes accents in another form than other
systems, and a blank behind a name is invisible. None of these makes another client.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.cells import spelled

MISSING = ""
"""Stands for a name that is missing: null, NaN, or blank."""
_EXACT = 2**53
"""Floating-point numbers above this have lost their last digits."""


def name_of(value: object) -> str:
    """Return a value as a name, by the rule of :mod:`florilegium.partitions.sources.cells`.

    ``None``, NaN and blank texts give :data:`MISSING`; text such as "007" and "1.10" stays what it is.

    Raises:
        ValueError: for a floating-point number whose last digits are lost, and for bytes that are not UTF-8.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if isinstance(value, str):
        return spelled(value)
    if value is None or value != value:
        return MISSING
    if isinstance(value, float | np.floating) and abs(float(value)) > _EXACT:
        raise ValueError(f"{value!r} is a floating-point number above 2^53, whose last digits are lost")
    if isinstance(value, float | np.floating | Decimal) and value == int(value):
        return str(int(value))
    return str(value)


def names_in(column: pa.ChunkedArray, where: str) -> NDArray[np.str_]:
    """Return the names that the cells of a column are, (n,); raises as :func:`names_of`."""
    coded = column.combine_chunks()
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode(null_encoding="encode")
    codes = coded.indices.to_numpy(zero_copy_only=False)
    if coded.indices.null_count or len(coded.dictionary) > len(codes):
        return names_of(column.to_pylist(), where)
    values = coded.dictionary.to_pylist()
    try:
        names = names_of(values, where)
    except DataError:
        return names_of(column.to_pylist(), where)  # which says the row
    return np.asarray(names[codes]) if len(names) else np.array([], np.str_)


def names_of(values: Iterable[object], where: str) -> NDArray[np.str_]:
    """Return the names that the n ``values`` are, (n,); see :func:`name_of`.

    Args:
        values: the cells of a column.
        where: the column, as error messages name it.

    Raises:
        DataError: if a value cannot be a name.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind == "U" and values.ndim == 1 and len(values):
        texts, codes = np.unique(values, return_inverse=True)
        return names_of(texts.tolist(), where)[codes]
    known: dict[object, str] = {}
    names = []
    for row, value in enumerate(values):
        try:
            if (key := (type(value), value)) not in known:
                known[key] = name_of(value)
            names.append(known[key])
        except (TypeError, ValueError, ArithmeticError) as error:
            raise DataError(f"{where}: row {row} holds no name: {error}; write names as text or as integers") from error
    return np.array(names, dtype=np.str_)
