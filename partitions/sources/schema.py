"""Custom datasets: a folder of parquet files, and a ``schema.toml`` that describes their columns.

    label = "income"                        # may be omitted, for clustering
    labels = ["<=50K", ">50K"]              # all values of the label
    clients = ["state", "employment"]       # columns that may name natural clients, or select rows

    [numbers]                               # mean and standard deviation, used to standardise
    age = [38.6, 13.6]

    [categories]                            # all values; each becomes a 0/1 feature
    sex = ["1", "2"]

    [dates]                                 # mean and deviation of days since 1970-01-01
    admitted = [19000.5, 240.1]

    [vectors]                               # lists of numbers of this length, such as text embeddings
    embedding = 384

``response = "response"`` instead of label and labels names a column of responses to the prompts of ``[texts]``.
``word-labels = true`` says that the column of ``[texts]`` holds lists of words, and that of labels a label for each.
``target = "price"`` instead of label and labels names a column of numbers to predict, ``target = ["x", "y"]`` several;
``scales = [[mean, deviation]]`` says how each is distributed (key ``target-scale``).
``task = "survival"`` or ``"package.module:attribute"`` names what is learned, if it is neither classification nor
regression. ``positions = [64, 64]`` says that the label column holds lists: a class 0, 1, … for each position of a row,
−100 where none counts. ``weight = "w"`` names a column of weights of rows in the training loss.

``missing = "median"`` fills in missing inputs by the values of ``[fill]``; ``indicators = ["age"]`` adds a 0/1 feature
that says where a value was missing; ``missing = "drop"`` leaves such rows out. ``date-parts = ["days", "year"]`` makes
sine and cosine of the year of dates, and ``date-format = "%d.%m.%Y"`` reads dates that are text. Instead of a table:

    [pictures]
    column = "image"                        # pictures' files as bytes, all of one size
    shape = [3, 64, 64]                     # channels, height, width
    mean = [0.48, 0.46, 0.41]               # per channel, in units of 0..1, used to standardise
    std = [0.27, 0.26, 0.28]

    [texts]
    column = "text"
    length = 140                            # characters

    [arrays]                                # what a network receives as it is
    column = "x"
    shape = [12, 100]                       # of one input
    tokens = 5000                           # integers 0..4999; omitted: floats

Means, deviations and categories are stated here, not computed from data, so that every device encodes in the same way.
Schemas of data without one are written by :mod:`florilegium.partitions.sources.inference`.
"""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered
from florilegium.common.places import read_utf8
from florilegium.common.settings import NAME
from florilegium.partitions.sources.dates import ISO
from florilegium.partitions.sources.tables import INDICATOR, MEDIAN, TableSchema
from florilegium.partitions.spec import DatasetSpec

FILE = "schema.toml"


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


class Texts(BaseModel):
    """The table ``[texts]`` of a ``schema.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str = Field(min_length=1)
    length: PositiveInt


class Arrays(BaseModel):
    """The table ``[arrays]`` of a ``schema.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str = Field(min_length=1)
    shape: tuple[PositiveInt, ...] = Field(min_length=1)
    tokens: NonNegativeInt = 0


class Schema(BaseModel):
    """The content of a ``schema.toml``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field("", pattern=f"^({NAME})?$")
    label: str = ""
    labels: tuple[str | int, ...] = ()
    target: str | tuple[str, ...] = ""
    response: str = ""
    word_labels: bool = Field(False, alias="word-labels")
    task: str = ""
    positions: tuple[PositiveInt, ...] = ()
    weight: str = ""
    clients: tuple[str, ...] = ()
    numbers: dict[str, tuple[float, float]] = Field(default_factory=dict)
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    vectors: dict[str, PositiveInt] = Field(default_factory=dict)
    dates: dict[str, tuple[float, float]] = Field(default_factory=dict)
    date_parts: tuple[Literal["days", "year", "week", "day"], ...] = Field(("days",), min_length=1, alias="date-parts")
    date_format: str = Field(ISO, alias="date-format")
    missing: Literal["refuse", "drop", "median", "indicator"] = "refuse"
    fill: dict[str, float | str] = Field(default_factory=dict)
    indicators: tuple[str, ...] = ()
    scales: tuple[tuple[float, PositiveFloat], ...] = ()
    pictures: Pictures | None = None
    texts: Texts | None = None
    arrays: Arrays | None = None

    @field_validator("categories")
    @classmethod
    def _are_distinct(cls, categories: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, values in categories.items():
            if len(set(values)) < len(values):
                raise ValueError(f"{name} has a value twice")
        return categories

    @property
    def _targets(self) -> tuple[str, ...]:
        """The columns of numbers to predict."""
        return (self.target,) if self.target and isinstance(self.target, str) else tuple(self.target)

    def problem(self) -> str:
        """Return what is wrong with the combination of keys; "" if nothing is."""
        table = self._table
        single = [name for name in ("pictures", "texts", "arrays") if getattr(self, name) is not None]
        scales = {f"numbers.{name}": std for name, (_, std) in self.numbers.items()}
        scales |= {f"dates.{name}": std for name, (_, std) in self.dates.items()}
        if flat := [name for name, std in scales.items() if std <= 0]:
            return f"{flat[0]} has no positive standard deviation"
        inputs = [*table.columns, *(one.column for one in (self.pictures, self.texts, self.arrays) if one)]
        if leaks := [
            name for name in (self.label, *self._targets, self.response, self.weight) if name and name in inputs
        ]:
            return f"column '{leaks[0]}' is an input, and also the target or the weight"
        if len({*table.columns}) < len(table.columns):
            return "an input column is listed twice"
        filled = {*self.numbers, *self.dates, *self.categories}
        if wrong := [name for name in (*self.fill, *self.indicators) if name not in filled]:
            return f"fill and indicators name '{wrong[0]}', which is no column of numbers, dates or categories"
        if wrong := [n for n in self.fill if n not in self.categories and isinstance(self.fill[n], str)]:
            return f"fill.{wrong[0]} is no number"
        if bool(self.fill) != (self.missing in (MEDIAN, INDICATOR)):
            return "fill goes with missing = 'median' and missing = 'indicator', and these need it"
        if self.target and (self.label or self.labels):
            return "label and labels name classes, and target numbers to predict; give one of the two"
        if self.response and (self.texts is None or self.target or self.label or self.labels):
            return "response goes with [texts] that are prompts, without label and target"
        if self.word_labels and (self.texts is None or self.positions or not self.label):
            return "word-labels goes with [texts] that are lists of words, label and labels, without positions"
        if len(single) > 1:
            return f"{' and '.join(single)} exclude each other"
        if single and (table.features or not (self.target or self.response or (self.label and self.labels))):
            return f"{single[0]} need label and labels (or target), and no other input columns"
        if self.scales and len(self.scales) != len(self._targets):
            return f"there are {len(self.scales)} scales for {len(self._targets)} targets"
        if len({*self._targets}) < len(self._targets):
            return "target names a column twice"
        if self.positions and (not self.labels or self.labels != tuple(range(len(self.labels)))):
            return "positions need a label, and the labels 0, 1, …"
        if bool(self.label) != bool(self.labels):
            return "label and labels go together"
        return "" if single or table.features else "it names no input column"

    def spec(self, folder: Path) -> DatasetSpec:
        """Return the description of the dataset in ``folder``, whose name is used unless the schema has one."""
        y, *further = self._targets or (self.response or self.label,)
        classes = 0 if self.target else max(1, len(self.labels))
        described = partial(
            DatasetSpec, self.name or folder.name, "", y=y, further=tuple(further), classes=classes, labels=self.labels,
            test=False, client_columns=self.clients, folder=str(folder),
            task=self.task or ("next-token" if self.response else ""), responses=bool(self.response),
            word_labels=self.word_labels, positions=self.positions, weight=self.weight, scales=self.scales,
        )  # fmt: skip
        if (p := self.pictures) is not None:
            return described("image", p.column, shape=p.shape, mean=p.mean, std=p.std)
        if self.texts is not None:
            return described("characters", self.texts.column, shape=(self.texts.length,))
        if (a := self.arrays) is not None:
            return described("tokens" if a.tokens else "numbers", a.column, shape=a.shape, tokens=a.tokens)
        return described("table", "", shape=(self._table.features,), table=self._table)

    @property
    def _table(self) -> TableSchema:
        return TableSchema(
            self.numbers, self.categories, self.vectors, self.dates, self.date_parts, self.date_format, self.missing,
            self.fill, self.indicators,
        )  # fmt: skip


@remembered(16)
def read_schema(path: Path) -> DatasetSpec:
    """Return the description of the custom dataset in folder ``path``.

    Raises:
        ConfigurationError: if there is no ``schema.toml``, or it is not valid.
    """
    file = path / FILE
    if not path.is_absolute() or not file.is_file():
        raise ConfigurationError(
            f"dataset: there is no {file}; a dataset of your own is an absolute path to its folder"
        )
    try:
        schema = Schema.model_validate(tomllib.loads(read_utf8(file)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{file} is not valid TOML: {error}") from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise ConfigurationError(f"{file}: {said}") from error
    if problem := schema.problem():
        raise ConfigurationError(f"{file}: {problem}")
    return schema.spec(path)
