"""Columns of targets as arrays: classes, or numbers to predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.common.text import ALPHABET
from florilegium.partitions.sources.numbers import Cells, arrays_of, targets_of
from florilegium.partitions.sources.pieces import with_labels, with_responses
from florilegium.partitions.spec import DatasetSpec


def decode_targets(spec: DatasetSpec, table: pyarrow.Table, name: str) -> NDArray[Any]:
    """Decode the columns of targets of a table, as they are stored: int64 classes, or places where responses begin, or
    float32 numbers."""
    if spec.responses:  # read with the prompts, whose notes are those of the inputs
        prompts, responses = (table.column(column).to_pylist() for column in (spec.x, spec.y))
        return with_responses(
            prompts, responses, Path(spec.tokenizer), spec.shape[0], f"{name}: column '{spec.y}'", []
        )[1]
    if spec.word_labels:
        return labels_of_words(spec, table, name)
    if spec.positions:
        return positions_of(spec, table.column(spec.y), f"{name}: column '{spec.y}'")
    if spec.targets.numbers:
        return numbers_to_predict(spec, [table.column(column) for column in spec.targets.columns], name)
    return labels_of(spec, table.column(spec.y).to_pylist(), name)


def labels_of_words(spec: DatasetSpec, table: pyarrow.Table, name: str) -> NDArray[np.int64]:
    """Return the class of each word at its first token, (n, length), ``IGNORED`` elsewhere.

    The class is 0 for each word where the table has no labels.
    """
    sentences = table.column(spec.x).to_pylist()
    labels = None
    if spec.y in table.column_names:
        given = [[*cell] if cell is not None else [] for cell in table.column(spec.y).to_pylist()]
        flat = iter(labels_of(spec, [label for own in given for label in own], name).tolist())
        labels = [[next(flat) for _ in own] for own in given]
    where = f"{name}: column '{spec.x}'"  # cut sentences are noted with the inputs
    return with_labels(sentences, labels, Path(spec.tokenizer), spec.shape[0], where, [])[1]


def numbers_to_predict(spec: DatasetSpec, columns: Sequence[Any], name: str) -> NDArray[np.float32]:
    """Return the columns of targets as they are stored, (n,) or (n, k); raises as :func:`targets_of`."""
    named = zip(spec.targets.columns, columns, strict=True)
    found = [targets_of(cells, f"{name}: column '{column}'") for column, cells in named]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def positions_of(spec: DatasetSpec, cells: Cells, where: str) -> NDArray[np.int64]:
    """Return lists of the classes of positions, nested or flat, as an array (n, *positions).

    Raises:
        DataError: as :func:`florilegium.partitions.sources.numbers.arrays_of`.
    """
    return arrays_of(cells, spec.positions, where, tokens=True)


def labels_of(spec: DatasetSpec, values: Sequence[Any], name: str) -> NDArray[np.int64]:
    """Map labels to 0..C-1: characters by the alphabet, named values by ``spec.labels``, numbers as they are.

    Raises:
        DataError: if a label is not one of the dataset's.
    """
    known: Sequence[Any] = spec.labels or (ALPHABET if spec.kind == "characters" else range(spec.classes))
    codes = {value: code for code, value in enumerate(known)}
    for row, value in enumerate(values):
        if value not in codes:
            raise DataError(
                f"{name}: the label in row {row} is {value!r}, but the classes of '{spec.name}' are "
                f"{list(known) if len(known) <= 10 else f'{known[0]!r} to {known[-1]!r}'}"
            )
    return np.array([codes[value] for value in values], dtype=np.int64)
