"""Decode the rows of a table, whatever its source, to plain arrays: inputs, targets, names of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.columns import plain, relabelled
from florilegium.partitions.sources.inputs import INPUTS, Reading
from florilegium.partitions.sources.names import names_in
from florilegium.partitions.sources.numbers import Cells, numbers_of
from florilegium.partitions.sources.places import LEFT_OUT, noted
from florilegium.partitions.sources.tables import complete
from florilegium.partitions.sources.targets import decode_targets
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import DatasetSpec, Split


def decode(
    spec: DatasetSpec,
    table: pyarrow.Table,
    name: str,
    words: Vocabulary | None = None,
    part: str = "train",
    *,
    foreign: bool = False,
    notes: list[str] | None = None,
) -> Split:
    """Turn the rows of ``table`` into arrays as ``spec`` describes.

    Args:
        spec: the dataset's description.
        table: its rows, in the hub's schema.
        name: name of the source in error messages.
        words: the vocabulary, for a dataset of words.
        part: "train" or "test"; test rows may have categories that the schema does not know.
        foreign: whether the rows were not written for ``spec``: images are resized, and labels compared as text.
        notes: to which lines on what was left out are added.

    Raises:
        DataError: if a column is missing, an image has another size, or a label is out of range.
    """
    notes = [] if notes is None else notes
    _check_columns(spec, table, [*spec.targets.columns, *([spec.weight] if spec.weight else [])], name)
    if foreign:
        table = relabelled(plain(table), spec.y, spec.labels)
    table = without_gaps(spec, table, name, notes)
    x = INPUTS[spec.kind].read(spec, table, Reading(name, words, foreign, notes, part != "train"))
    y = decode_targets(spec, table, name) if spec.y else np.zeros(len(x), np.int64)
    clients = {
        column: names_in(table.column(column), f"{name}: column '{column}'")
        for column in spec.client_columns
        if column in table.column_names
    }
    weights = weights_of(table.column(spec.weight), f"{name}: column '{spec.weight}'") if spec.weight else None
    return Split(x, y, clients, weights)


def decode_inputs(
    spec: DatasetSpec,
    table: pyarrow.Table,
    name: str,
    words: Vocabulary | None = None,
    notes: list[str] | None = None,
    *,
    lenient: bool = False,
) -> NDArray[Any]:
    """Decode the input columns alone (see :func:`decode`); ``lenient``: unknown categories get one of the ``notes``."""
    _check_columns(spec, table, [], name)
    return INPUTS[spec.kind].read(
        spec, table, Reading(name, words, notes=[] if notes is None else notes, lenient=lenient)
    )


def weights_of(cells: Cells, where: str) -> NDArray[np.float32]:
    """Return the weights of rows, (n,).

    Raises:
        DataError: if one is missing, not finite or below 0, or all are 0.
    """
    with np.errstate(over="ignore"):
        weights = numbers_of(cells, where).astype(np.float32)
    if not np.isfinite(weights).all():
        raise DataError(f"{where} has a weight in row {int(np.argmin(np.isfinite(weights)))} that is too large")
    if (weights < 0).any() or (len(weights) and not weights.any()):
        found = f"{weights.min():g} in row {int(weights.argmin())}" if (weights < 0).any() else "0 in all rows"
        raise DataError(f"{where} must hold weights of at least 0, not all 0 (found: {found})")
    return weights


def without_gaps(spec: DatasetSpec, table: pyarrow.Table, name: str, notes: list[str]) -> pyarrow.Table:
    """Return the table without the rows that the schema drops, since an input is missing; say how many these are."""
    kept = complete(spec.table, table) if spec.table is not None else None
    if kept is None:
        return table
    notes.append(f"{LEFT_OUT}{name}: {int((~kept).sum())} of {len(kept)} rows are dropped, since an input is missing")
    if not kept.any():
        raise DataError(f"{name}: every row misses an input, and missing = 'drop' leaves none; use 'median' instead")
    return noted(table.filter(pyarrow.array(kept)), [])


def _check_columns(spec: DatasetSpec, table: pyarrow.Table, labels: list[str], name: str) -> None:
    wanted = [*(spec.table.columns if spec.table else [spec.x]), *labels]
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        raise DataError(
            f"{name}: column '{missing[0]}' is missing. Found: {', '.join(table.column_names)}; "
            f"'{spec.name}' needs: {', '.join(wanted)}."
        )
