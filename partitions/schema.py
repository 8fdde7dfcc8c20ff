"""Datasets of the user's own: a folder of parquet files and a ``schema.toml`` that says what their columns are.

    label = "income"                        # may be left out, for clustering
    labels = ["<=50K", ">50K"]              # its values
    clients = ["state", "employment"]       # columns that may name natural clients, or choose rows

    [numbers]                               # mean and standard deviation, to standardise by
    age = [38.6, 13.6]

    [categories]                            # all values; each becomes a 0/1 feature
    sex = ["1", "2"]

    [vectors]                               # lists of numbers of this length, such as text embeddings
    embedding = 384

The scales and values are written down, not taken from the data, so that every device encodes alike.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator

from common.errors import ConfigurationError
from partitions.datasets import DatasetSpec
from partitions.tables import TableSchema


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    label: str = ""
    labels: tuple[str | int, ...] = ()
    clients: tuple[str, ...] = ()
    numbers: dict[str, tuple[float, float]] = Field(default_factory=dict)
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    vectors: dict[str, PositiveInt] = Field(default_factory=dict)

    @field_validator("categories")
    @classmethod
    def _are_distinct(cls, categories: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, values in categories.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{name} has a value twice")
        return categories


@lru_cache(maxsize=16)
def read_schema(path: Path) -> DatasetSpec:
    """Return the description of the dataset in folder ``path``.

    Raises:
        ConfigurationError: if there is no ``schema.toml``, or it does not describe a table.
    """
    file = path / "schema.toml"
    if not path.is_absolute() or not file.is_file():
        raise ConfigurationError(
            f"dataset: there is no {file}; a dataset of your own is an absolute path to its folder"
        )
    try:
        schema = _Schema.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise ConfigurationError(f"{file}: {said}") from error
    table = TableSchema(schema.numbers, schema.categories, schema.vectors)
    flat = [name for name, (_, std) in schema.numbers.items() if std <= 0]
    if not table.features or flat or bool(schema.label) != bool(schema.labels):
        found = f"numbers.{flat[0]} has no positive standard deviation" if flat else (
            "label and labels go together" if table.features else "it names no input column")  # fmt: skip
        raise ConfigurationError(f"{file}: {found}")
    return DatasetSpec(
        path.name, "", "table", "", schema.label, max(1, len(schema.labels)), (table.features,),
        client_columns=schema.clients, test=False, labels=schema.labels, table=table, folder=str(path),
    )  # fmt: skip
