"""What the columns of a table hold: text, numbers, images, vectors, names of classes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from florilegium.partitions.sources.cells import meant, spelled

MISSING = ("NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", "?")
"""Words for a missing number in CSV files; in a column of other texts they are values like any."""


def _features(table: pa.Table) -> dict[str, Any]:
    """Return the features that ``datasets`` notes in a table's metadata; {} if there are none."""
    noted = (table.schema.metadata or {}).get(b"huggingface")
    features: dict[str, Any] = json.loads(noted)["info"]["features"] if noted else {}
    return features


def class_labels(table: pa.Table) -> dict[str, list[str]]:
    """Return the names of the classes of each column that is a ClassLabel."""
    return {
        name: list(feature["names"])
        for name, feature in _features(table).items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and name in table.column_names
    }


def word_labels(table: pa.Table, column: str) -> list[str]:
    """Return the names of the classes in the lists of a column, if they are ClassLabels; [] otherwise."""
    feature = _features(table).get(column)
    feature = feature[0] if isinstance(feature, list) and len(feature) == 1 else feature
    each = feature.get("feature", feature) if isinstance(feature, dict) else {}
    return list(each["names"]) if isinstance(each, dict) and each.get("_type") == "ClassLabel" else []


def plain(table: pa.Table) -> pa.Table:
    """Return the table with the names of classes instead of their numbers; -1 means that a label is missing."""
    for column, names in class_labels(table).items():
        index = table.column_names.index(column)
        cells = table.column(column).to_pylist()
        words = [names[cell] if cell is not None and 0 <= cell < len(names) else None for cell in cells]
        table = table.set_column(index, column, pa.array(words, pa.string()))
    return table


def relabelled(table: pa.Table, column: str, labels: Sequence[object]) -> pa.Table:
    """Return the table with the one of ``labels``, in ``column``, that a cell means; other cells as they are."""
    if not labels or column not in table.column_names:
        return table
    cells = table.column(column).to_pylist()
    known = meant({str(cell) for cell in cells}, labels)
    cells = [known.get(str(cell), cell) for cell in cells]
    return table.set_column(table.column_names.index(column), column, [cells])


def is_text(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold texts or categories."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_image(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold encoded images, as ``datasets`` writes them."""
    return bool(pa.types.is_struct(kind) and {"bytes", "path"} <= {kind.field(i).name for i in range(kind.num_fields)})


def is_binary(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold bytes, which may be encoded images."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_words(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold lists of words."""
    return is_list(kind) and is_text(kind.value_type)


def is_vector(kind: pa.DataType) -> bool:
    """Return whether columns of this type hold lists of numbers."""
    return is_list(kind) and is_number(kind.value_type)


def count_distinct(column: pa.ChunkedArray) -> int:
    """Return how many different values a column has, missing ones not counted."""
    return len(pc.unique(column.drop_null()))


def category_of(cell: object) -> str:
    """Return the category of a cell (:func:`florilegium.partitions.sources.cells.spelled`); "" if it is missing."""
    return "" if cell is None or cell != cell else spelled(str(cell))


def category_codes(cells: Any) -> tuple[NDArray[np.int64], list[str]]:
    """Return the categories of n cells: codes (n,), and the categories that they number (:func:`category_of`)."""
    if isinstance(cells, pa.ChunkedArray):
        column = cells
    else:  # a list may mix numbers and texts
        column = pa.chunked_array([pa.array([category_of(cell) for cell in cells], pa.string())])
    coded = column.combine_chunks()
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode(null_encoding="encode")
    words = [category_of(cell) for cell in coded.dictionary.to_pylist()]
    codes = coded.indices.to_numpy(zero_copy_only=False)
    if coded.null_count and coded.indices.null_count:
        words, codes = [*words, ""], np.where(coded.is_null().to_numpy(zero_copy_only=False), len(words), codes)
    known = {word: place for place, word in enumerate(dict.fromkeys(words))}
    return np.array([known[word] for word in words], np.int64)[codes.astype(np.int64)], [*known]


def listed(values: Iterable[Any]) -> str:
    """Return up to ten values as text, for messages, and how many there are."""
    words = [str(value) for value in values]
    return ", ".join(words[:10]) + (f", … ({len(words)} in all)" if len(words) > 10 else "")
