"""The features of a dataset's inputs by name: from which column each is, and in which unit."""

from __future__ import annotations

from dataclasses import dataclass

from florilegium.partitions.sources.date_parts import DAYS
from florilegium.partitions.spec import DatasetSpec


@dataclass(frozen=True)
class Named:
    """One feature of an input.

    Attributes:
        name: the column's name; with "=" and the category for an indicator of one.
        column: the column it is made of.
        mean, std: a feature x stands for the value mean + std·x of the column.
        first: whether it indicates the first of a column's categories, which the others leave no choice for.
    """

    name: str
    column: str
    mean: float = 0.0
    std: float = 1.0
    first: bool = False


def features_of(spec: DatasetSpec) -> list[Named]:
    """Return the features of a dataset's flattened inputs, in their order; without a table they are x0, x1, ….

    Raises:
        ValueError: if its inputs are texts, whose codes are no numbers.
    """
    if spec.codes or spec.kind == "words":
        raise ValueError(f"the inputs of '{spec.name}' are texts, not columns of numbers and categories")
    table = spec.table
    if table is None:
        size = 1
        for length in spec.shape:
            size *= length
        return [Named(f"x{i}", f"x{i}") for i in range(size)]
    found = [Named(name, name, mean, std) for name, (mean, std) in table.numbers.items()]
    for name, (mean, std) in table.dates.items():
        for part in table.date_parts:
            if part == DAYS:
                found.append(Named(name, name, mean, std))
            else:
                found += [Named(f"{name} {wave} of {part}", name) for wave in ("sine", "cosine")]
    for name, words in table.categories.items():
        found += [Named(f"{name}={word}", name, first=i == 0) for i, word in enumerate(words)]
    for name, length in table.vectors.items():
        found += [Named(f"{name}[{i}]", name) for i in range(length)]
    return found + [Named(f"{name} missing", name) for name in table.indicators]
