"""The form with a field for each column of a run's data, so that a row can be typed without the form of a CSV file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from florilegium.common.errors import RunError

if TYPE_CHECKING:
    from florilegium.partitions.sources.tables import TableSchema
    from florilegium.partitions.spec import DatasetSpec

MOST_FIELDS = 200
"""Columns that a form has at most."""
MOST_CHOICES = 1000
"""Values of a column that a form lists; of more, the value is typed."""


@dataclass(frozen=True)
class Field:
    """A column of the data that a model predicts from.

    Attributes:
        name: of the column.
        kind: "number", "date", "text" or "choice".
        hint: what a value looks like; "" if that is plain.
        choices: all values of a "choice".
    """

    name: str
    kind: str
    hint: str = ""
    choices: tuple[str, ...] = ()


def fields_of(spec: DatasetSpec) -> list[Field]:
    """Return the columns of a dataset's inputs, in the data's order.

    Raises:
        RunError: if rows of these data cannot be typed, or have more columns than a form shows.
    """
    table = spec.table
    if spec.word_labels or spec.kind in ("image", "numbers", "tokens") or (table is not None and table.vectors):
        raise RunError("rows of these data are no single numbers or words; choose a file with rows instead")
    found = [Field(spec.x, "text")] if table is None else [*_columns(table)]
    if len(found) > MOST_FIELDS:
        raise RunError(
            f"the data have {len(found)} columns, a form shows at most {MOST_FIELDS}; choose a file with rows"
        )
    return found


def _columns(table: TableSchema) -> Iterator[Field]:
    for name, (mean, _) in table.numbers.items():
        yield Field(name, "number", f"mean {mean:.4g}")
    for name in table.dates:
        yield Field(name, "date", table.date_format or "YYYY-MM-DD")
    for name, values in table.categories.items():
        few = len(values) <= MOST_CHOICES
        yield Field(name, "choice" if few else "text", choices=tuple(values) if few else ())
