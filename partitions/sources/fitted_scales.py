"""Scales of a table's columns that a run of `describe` has fitted, by sums over clients: key ``fitted-scales``.

The key's value is the content of the run's ``scales.json``, so that it travels with the configuration to devices, and
with models to predictions. Means, deviations, medians and most frequent categories replace those of the schema.
"""

from __future__ import annotations

import json
from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.sources.tables import TableSchema

FILE = "scales.json"


class Number(BaseModel):
    """What was fitted of a column of numbers: mean and standard deviation of known values, and their median."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    mean: float
    deviation: PositiveFloat
    median: float | None = None


class Fitted(BaseModel):
    """What was fitted of a table: its numbers, and the most frequent category of each other column."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    numbers: dict[str, Number] = Field(default_factory=dict)
    categories: dict[str, str] = Field(default_factory=dict)


def read(text: str) -> Fitted:
    """Return what the value of key ``fitted-scales`` says.

    Raises:
        ConfigurationError: if it is not the content of a ``scales.json``.
    """
    try:
        return Fitted.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        raise ConfigurationError(
            f"fitted-scales: give a run of 'describe', or the content of its {FILE} (found: {text[:60]!r}: "
            f"{str(error).splitlines()[0]})"
        ) from error


def applied(schema: TableSchema, text: str) -> TableSchema:
    """Return the schema of a table with scales, and fill values, that were fitted; "": as it is.

    Raises:
        ConfigurationError: if the text is none of fitted scales, or none of its columns is in the table.
    """
    if not text:
        return schema
    fitted = read(text)
    columns = {*fitted.numbers, *fitted.categories}
    if not columns & {*schema.numbers, *schema.categories}:
        raise ConfigurationError(
            f"fitted-scales: its columns, {', '.join(sorted(columns)) or 'none'}, are not those of the dataset"
        )
    numbers = {
        name: (one.mean, one.deviation) if (one := fitted.numbers.get(name)) else scale
        for name, scale in schema.numbers.items()
    }
    fill = {**schema.fill}
    for name in fill:
        if name in fitted.categories and fitted.categories[name] in schema.categories.get(name, ()):
            fill[name] = fitted.categories[name]
        elif name in fitted.numbers and (median := fitted.numbers[name].median) is not None:
            fill[name] = median
    return replace(schema, numbers=numbers, fill=fill)
