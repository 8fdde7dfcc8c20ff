"""Tabular data as feature vectors, with fixed scales and categories so that every device encodes in the same way.

Means and standard deviations are fixed, not computed from the data: a single device cannot know the mean over all
devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.cells import meant
from florilegium.partitions.sources.columns import MISSING, category_codes, is_text, listed
from florilegium.partitions.sources.date_parts import DAYS, width
from florilegium.partitions.sources.dates import ISO, days_of, parts_of
from florilegium.partitions.sources.numbers import (
    Cells,
    arrays_of,
    column_of,
    numbers_of,
    refuse_missing,
    standardised,
)

# UCI Adult, training part: mean and standard deviation of the numeric columns.
ADULT_NUMBERS: Mapping[str, tuple[float, float]] = {
    "age": (38.582, 13.640),
    "fnlwgt": (189778.367, 105549.978),
    "education.num": (10.081, 2.573),
    "capital.gain": (1077.649, 7385.292),
    "capital.loss": (87.304, 402.960),
    "hours.per.week": (40.437, 12.347),
}
# UCI Adult: the categories of each column in one string, "?" for unknown. Each category is one 0/1 feature.
ADULT_CATEGORIES: Mapping[str, str] = {
    "workclass": "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
    "education": "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters "
    "Preschool Prof-school Some-college",
    "marital.status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated "
    "Widowed",
    "occupation": "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
    "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support "
    "Transport-moving",
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native.country": "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France "
    "Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan "
    "Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South "
    "Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia",
}
ADULT_COLUMNS = (*ADULT_NUMBERS, *ADULT_CATEGORIES)


REFUSE, DROP, MEDIAN, INDICATOR = "refuse", "drop", "median", "indicator"
"""What is done where an input is missing."""


@dataclass(frozen=True)
class TableSchema:
    """The input columns of a table, and how each becomes features, in this order.

    Attributes:
        numbers: numeric columns, each with the mean and standard deviation that standardise it.
        categories: categorical columns, each with all its values; each value is one 0/1 feature.
        vectors: columns of lists of numbers, each with the lists' length; used without scaling.
        dates: columns of dates, each with the mean and standard deviation of its days.
        date_parts: what a date becomes (:mod:`florilegium.partitions.sources.dates`).
        date_format: the format of dates that are text; "": ISO 8601.
        missing: what is done where an input is missing.
        fill: what stands for a missing value, by column: the median of a number or of days, the most frequent category.
        indicators: columns with a 0/1 feature that says whether the value was missing; these come last.
        own: whether each client standardises, and fills in, by its own training rows: then missing numbers stay NaN.
    """

    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vectors: Mapping[str, int] = field(default_factory=dict)
    # Not in the names of caches of earlier versions (:attr:`further`):
    dates: Mapping[str, tuple[float, float]] = field(default_factory=dict, repr=False)
    date_parts: tuple[str, ...] = field(default=(DAYS,), repr=False)
    date_format: str = field(default=ISO, repr=False)
    missing: str = field(default=REFUSE, repr=False)
    fill: Mapping[str, float | str] = field(default_factory=dict, repr=False)
    indicators: tuple[str, ...] = field(default=(), repr=False)
    own: bool = field(default=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all input columns, in order."""
        return (*self.numbers, *self.dates, *self.categories, *self.vectors)

    @property
    def features(self) -> int:
        """Number of features of a row."""
        dates = len(self.dates) * width(self.date_parts)
        categories = sum(map(len, self.categories.values()))
        return len(self.numbers) + dates + categories + sum(self.vectors.values()) + len(self.indicators)

    @property
    def scaled(self) -> list[int]:
        """The places of the features that are standardised: numbers, and days of dates."""
        each, first = width(self.date_parts), len(self.numbers)
        days = [first + number * each for number in range(len(self.dates))] if self.date_parts[0] == DAYS else []
        return [*range(first), *days]

    @property
    def further(self) -> list[str]:
        """What tells apart tables whose ``repr`` is the same; [] for those that earlier versions knew."""
        plain = TableSchema(self.numbers, self.categories, self.vectors)
        return [] if self == plain else [repr(vars(self))]


ADULT = TableSchema(ADULT_NUMBERS, {name: tuple(words.split()) for name, words in ADULT_CATEGORIES.items()})


def of_column(schema: TableSchema, column: str) -> TableSchema:
    """Return the schema of one of a table's columns alone."""
    kinds: dict[str, Any] = {
        kind: {column: known[column]} if column in (known := getattr(schema, kind)) else {}
        for kind in ("numbers", "categories", "vectors", "dates")
    }
    return replace(schema, **kinds, indicators=tuple(name for name in schema.indicators if name == column))


def placeholder(schema: TableSchema, column: str, rows: int) -> pa.Array:
    """Return cells that stand for a column which is not there, (rows,): any that fit the schema."""
    if column in schema.numbers:
        return pa.array(np.full(rows, schema.numbers[column][0]))
    if column in schema.dates:
        return pa.array(np.full(rows, np.datetime64("2000-01-01", "us")))
    if column in schema.vectors:
        return pa.array([[0.0] * schema.vectors[column]] * rows, pa.list_(pa.float64()))
    return pa.array([schema.categories[column][0]] * rows, pa.string())


def as_they_are(columns: Sequence[str]) -> TableSchema:
    """Return the schema of a table of numbers that are not scaled."""
    return TableSchema(dict.fromkeys(columns, (0.0, 1.0)))


def complete(schema: TableSchema, table: pa.Table) -> NDArray[np.bool_] | None:
    """Return which rows have all inputs, (n,); None if rows with missing inputs are not dropped, or all have them."""
    if schema.missing != DROP:
        return None
    lacking = np.zeros(table.num_rows, bool)
    for name in schema.columns:
        lacking |= lacks(table.column(name))
        if name in schema.categories:
            codes, words = category_codes(table.column(name))
            unknown = [word in MISSING and word not in schema.categories[name] for word in words]
            lacking |= np.array(unknown, bool)[codes]
    return ~lacking if lacking.any() else None


def lacks(cells: Cells) -> NDArray[np.bool_]:
    """Return where a column has no value, (n,): null, NaN, or blank text."""
    column = column_of(cells)
    if pa.types.is_floating(column.type):
        found = pc.is_null(column, nan_is_null=True)
    elif is_text(column.type):
        text = column.cast(pa.string())
        found = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(text), ""), True)
    else:
        found = column.is_null()
    return np.asarray(found.to_numpy(zero_copy_only=False) if isinstance(found, pa.Array) else found.to_numpy())


def encode_table(
    schema: TableSchema, columns: Mapping[str, Cells], source: str, notes: list[str] | None = None
) -> NDArray[np.float32]:
    """Return the features of a table's rows, (n, schema.features).

    Numbers are standardised in double precision, and rounded to single precision only then. Where a value is missing
    and rows have not been dropped, it is filled in as the schema says.

    Args:
        schema: the table's schema.
        columns: the n values of each column, by name.
        source: name of the source in error messages.
        notes: where rows may have categories that the schema does not know, as test rows may: all features of such a
            category are 0, and a line is added here. None: such a category is an error.

    Raises:
        DataError: if a value does not fit the schema; the message names its column.
    """
    lengths = {len(columns[name]) for name in schema.columns}
    if len(schema.vectors) == len(schema.columns) == 1:  # not copied
        name, length = next(iter(schema.vectors.items()))
        return arrays_of(columns[name], (length,), f"{source}: column '{name}'")
    features, lacking = np.empty((max(lengths), schema.features), np.float32), dict[str, NDArray[np.bool_]]()
    start = 0

    def put(values: NDArray[Any]) -> None:
        nonlocal start
        features[:, start : start + values.shape[1]] = values
        start += values.shape[1]

    for name in schema.columns if schema.fill else ():
        lacking[name] = lacks(columns[name])
    for name, (mean, std) in schema.numbers.items():
        where = f"{source}: column '{name}'"
        given, missing = columns[name], lacking.get(name)
        if missing is not None and missing.any():
            given = _filled(given, missing, schema.fill, name, where)
        with np.errstate(over="ignore"):
            scaled = standardised(given, mean, std, where)[:, None]
        if (np.abs(scaled) > np.finfo(np.float32).max).any():
            raise DataError(f"{where} has a number that its scale in the schema makes too large")
        put(_unfilled(scaled, missing, schema))
    for name, (mean, std) in schema.dates.items():
        where, missing = f"{source}: column '{name}'", lacking.get(name)
        days = days_of(column_of(columns[name]), schema.date_format, where)
        if missing is not None:
            days = np.where(missing, float(schema.fill.get(name, np.nan)), days)
        if np.isnan(days).any():
            refuse_missing(np.isnan(days), where)
        put(_unfilled(parts_of(days, mean, std, schema.date_parts), missing, schema))
    for name, categories in schema.categories.items():
        codes, words = category_codes(columns[name])
        words = ["" if word in MISSING and word not in categories else word for word in words]
        if name in schema.fill:
            words = [word or str(schema.fill[name]) for word in words]
        numbered = {category: place for place, category in enumerate(categories)}
        places = {word: numbered[category] for word, category in meant(words, categories).items()}
        unknown = sorted({word for word in words if word not in places})
        if unknown and notes is None and "" in unknown:
            raise DataError(
                f"{source}: column '{name}' misses values, and its schema does not say what they are: add \"\" to its "
                "categories, or a category to [fill]"
            )
        if unknown and notes is None:
            known = list(categories) if len(categories) <= 50 else f"{len(categories)} others"
            raise DataError(f"{source}: column '{name}' has the unknown category '{min(unknown)}'. Known: {known}.")
        table = np.zeros((len(words), len(categories)), np.float32)
        for code, word in enumerate(words):
            if word in places:
                table[code, places[word]] = 1
        if unknown and notes is not None:
            rows = int(np.isin(codes, [code for code, word in enumerate(words) if word in unknown]).sum())
            notes.append(
                f"{source}: {rows} rows have categories of column '{name}' that no training row has "
                f"({listed(unknown)}); all its features are 0 for them"
            )
        put(table[codes])
    for name, length in schema.vectors.items():
        arrays_of(columns[name], (length,), f"{source}: column '{name}'", out=features[:, start : start + length])
        start += length
    if schema.indicators:
        put(np.stack([lacking[name] for name in schema.indicators], axis=1))
    return features


def _filled(
    cells: Cells, missing: NDArray[np.bool_], fill: Mapping[str, float | str], name: str, where: str
) -> NDArray[np.float64]:
    """Return a column of numbers with the schema's value where one is missing, (n,)."""
    if name not in fill:
        refuse_missing(missing, where)
    numbers = np.full(len(missing), float(fill[name]))
    numbers[~missing] = numbers_of(column_of(cells).filter(pa.array(~missing)), where)
    return numbers


def _unfilled(
    values: NDArray[np.float64], missing: NDArray[np.bool_] | None, schema: TableSchema
) -> NDArray[np.float64]:
    """Return features with NaN where a value is missing that the client itself fills in."""
    return np.where(missing[:, None], np.nan, values) if schema.own and missing is not None else values
