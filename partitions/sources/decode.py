"""Decode the rows of a table, whatever its source, to plain arrays: inputs, targets, names of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.columns import plain, relabelled
from florilegium.partitions.sources.inputs import INPUTS, Reading
from florilegium.partitions.sources.names import names_of
from florilegium.partitions.sources.targets import decode_targets
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import DatasetSpec, Split


def decode(
    spec: DatasetSpec, table: pyarrow.Table, name: str, words: Vocabulary | None = None, *, foreign: bool = False
) -> Split:
    """Turn the rows of ``table`` into arrays as ``spec`` describes.

    Args:
        spec: the dataset's description.
        table: its rows, in the hub's schema.
        name: name of the source in error messages.
        words: the vocabulary, for a dataset of words.
        foreign: whether the rows were not written for ``spec``: images are resized, and labels compared as text.

    Raises:
        DataError: if a column is missing, an image has another size, or a label is out of range.
    """
    _check_columns(spec, table, [*spec.targets.columns], name)
    if foreign:
        table = relabelled(plain(table), spec.y, spec.labels)
    x = INPUTS[spec.kind].read(spec, table, Reading(name, words, foreign))
    y = decode_targets(spec, table, name) if spec.y else np.zeros(len(x), np.int64)
    clients = {
        column: names_of(table.column(column).to_pylist(), f"{name}: column '{column}'")
        for column in spec.client_columns
        if column in table.column_names
    }
    return Split(x, y, clients)


def decode_inputs(spec: DatasetSpec, table: pyarrow.Table, name: str, words: Vocabulary | None = None) -> NDArray[Any]:
    """Decode the input columns alone (see :func:`decode`)."""
    _check_columns(spec, table, [], name)
    return INPUTS[spec.kind].read(spec, table, Reading(name, words))


def _check_columns(spec: DatasetSpec, table: pyarrow.Table, labels: list[str], name: str) -> None:
    wanted = [*(spec.table.columns if spec.table else [spec.x]), *labels]
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        raise DataError(
            f"{name}: column '{missing[0]}' is missing. Found: {', '.join(table.column_names)}; "
            f"'{spec.name}' needs: {', '.join(wanted)}."
        )
