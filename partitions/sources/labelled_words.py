"""Columns of lists of labels, one for each word of a sentence, as in named-entity recognition."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from florilegium.common.errors import DataError
from florilegium.partitions.sources.columns import is_list, listed, word_labels


def are_labels_of_words(kind: pa.DataType) -> bool:
    """Return whether a column of this type may hold lists of labels: of texts or of integers."""
    return is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_string(kind.value_type))


def labels_of_lists(tables: dict[str, pa.Table], label: str, source: str, notes: list[str]) -> dict[str, Any]:
    """Return the schema's keys of a column of lists of labels, whose cells become the values that the keys list.

    Args:
        tables: the rows of "train" and perhaps "test"; the column is replaced in them.
        label: the column.
        source: where the data are, for messages.
        notes: to which a line on the classes is added.

    Raises:
        DataError: if a label occurs in no training row, or all are the same.
    """
    named = word_labels(tables["train"], label)
    found: dict[str, set[Any]] = {}
    for part, table in tables.items():
        cells = table.column(label).to_pylist()
        if named:
            cells = [[named[one] if 0 <= one < len(named) else one for one in own] for own in cells]
        tables[part] = table.set_column(table.column_names.index(label), label, pa.array(cells))
        found[part] = {one for own in cells for one in own}
    known = named or sorted(found["train"])
    if unknown := sorted({str(one) for own in found.values() for one in own if one not in known}):
        raise DataError(f"{source}: column '{label}' has labels of words that no training row has: {listed(unknown)}")
    if len(known) < 2:
        raise DataError(f"{source}: column '{label}' has {len(known)} label of words; two are needed to learn")
    notes.append(f"labels of words: column '{label}', {len(known)} classes: {listed(known)}")
    return {"label": label, "labels": known, "word-labels": True}
