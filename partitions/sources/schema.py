"""Custom datasets: a folder of parquet files, and a ``schema.toml`` that describes their columns.

    label = "income"                        # may be omitted, for clustering
    labels = ["<=50K", ">50K"]              # all values of the label
    clients = ["state", "employment"]       # columns that may name natural clients, or select rows

    [numbers]                               # mean and standard deviation, used to standardise
    age = [38.6, 13.6]

    [categories]                            # all values; each becomes a 0/1 feature
    sex = ["1", "2"]

    [vectors]                               # lists of numbers of this length, such as text embeddings
    embedding = 384

or, for images instead of a table (``florilegium.partitions.sources.picture_folders`` writes such a dataset):

    [pictures]
    column = "image"                        # encoded PNG or JPEG, all of one size
    shape = [3, 64, 64]                     # channels, height, width
    mean = [0.48, 0.46, 0.41]               # per channel, in units of 0..1, used to standardise
    std = [0.27, 0.26, 0.28]

Means, deviations and categories are stated here, not computed from data, so that every device encodes in the same way.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.spec import DatasetSpec


class Pictures(BaseModel):
    """The table ``[pictures]`` of a ``schema.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    column: str = Field(min_length=1)
    shape: tuple[PositiveInt, PositiveInt, PositiveInt]
    mean: tuple[float, ...]
    std: tuple[PositiveFloat, ...]

    @model_validator(mode="after")
    def _has_a_scale_for_every_channel(self) -> Pictures:
        if self.shape[0] not in (1, 3) or len(self.mean) != self.shape[0] or len(self.std) != self.shape[0]:
            raise ValueError("pictures have 1 channel or 3, and mean and std a number for each")
        return self


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    label: str = ""
    labels: tuple[str | int, ...] = ()
    clients: tuple[str, ...] = ()
    numbers: dict[str, tuple[float, float]] = Field(default_factory=dict)
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    vectors: dict[str, PositiveInt] = Field(default_factory=dict)
    pictures: Pictures | None = None

    @field_validator("categories")
    @classmethod
    def _are_distinct(cls, categories: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, values in categories.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{name} has a value twice")
        return categories


@lru_cache(maxsize=16)
def read_schema(path: Path) -> DatasetSpec:
    """Return the description of the custom dataset in folder ``path``.

    Raises:
        ConfigurationError: if there is no ``schema.toml``, or it is not valid.
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
    if schema.pictures is not None:
        if table.features or not schema.label or not schema.labels:
            raise ConfigurationError(f"{file}: pictures need label and labels, and no other input columns")
        p = schema.pictures
        return DatasetSpec(
            path.name, "", "image", p.column, schema.label, len(schema.labels), p.shape, p.mean, p.std,
            client_columns=schema.clients, test=False, labels=schema.labels, folder=str(path),
        )  # fmt: skip
    if not table.features or flat or bool(schema.label) != bool(schema.labels):
        found = f"numbers.{flat[0]} has no positive standard deviation" if flat else (
            "label and labels go together" if table.features else "it names no input column")  # fmt: skip
        raise ConfigurationError(f"{file}: {found}")
    return DatasetSpec(
        path.name, "", "table", "", schema.label, max(1, len(schema.labels)), (table.features,),
        client_columns=schema.clients, test=False, labels=schema.labels, table=table, folder=str(path),
    )  # fmt: skip
