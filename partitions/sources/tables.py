"""Tabular data as feature vectors, with fixed scales and categories so that every device encodes in the same way.

Means and standard deviations are fixed, not computed from the data: a single device cannot know the mean over all
devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.sources.columns import category_of
from florilegium.partitions.sources.numbers import Cells, arrays_of, cells_of, standardised

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


@dataclass(frozen=True)
class TableSchema:
    """The input columns of a table, and how each becomes features, in this order.

    Attributes:
        numbers: numeric columns, each with the mean and standard deviation that standardise it.
        categories: categorical columns, each with all its values; each value is one 0/1 feature.
        vectors: columns of lists of numbers, each with the lists' length; used without scaling.
    """

    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vectors: Mapping[str, int] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all input columns, in order."""
        return (*self.numbers, *self.categories, *self.vectors)

    @property
    def features(self) -> int:
        """Number of features of a row."""
        return len(self.numbers) + sum(map(len, self.categories.values())) + sum(self.vectors.values())


ADULT = TableSchema(ADULT_NUMBERS, {name: tuple(words.split()) for name, words in ADULT_CATEGORIES.items()})


def as_they_are(columns: Sequence[str]) -> TableSchema:
    """Return the schema of a table of numbers that are not scaled."""
    return TableSchema(dict.fromkeys(columns, (0.0, 1.0)))


def encode_table(schema: TableSchema, columns: Mapping[str, Cells], source: str) -> NDArray[np.float32]:
    """Return the features of a table's rows, (n, schema.features).

    Numbers are standardised in double precision, and rounded to single precision only then.

    Args:
        schema: the table's schema.
        columns: the n values of each column, by name.
        source: name of the source in error messages.

    Raises:
        DataError: if a value does not fit the schema; the message names its column.
    """
    lengths = {len(columns[name]) for name in schema.columns}
    features = np.empty((max(lengths), schema.features), np.float32)
    start = 0

    def put(values: NDArray[Any]) -> None:
        nonlocal start
        features[:, start : start + values.shape[1]] = values
        start += values.shape[1]

    for name, (mean, std) in schema.numbers.items():
        with np.errstate(over="ignore"):
            scaled = standardised(columns[name], mean, std, f"{source}: column '{name}'")[:, None]
        if (np.abs(scaled) > np.finfo(np.float32).max).any():
            raise DataError(f"{source}: column '{name}' has a number that its scale in the schema makes too large")
        put(scaled)
    for name, categories in schema.categories.items():
        values = np.array([category_of(value) for value in cells_of(columns[name])], dtype=np.str_)
        unknown = set(values) - set(categories)
        if unknown:
            known = list(categories) if len(categories) <= 50 else f"{len(categories)} others"
            raise DataError(f"{source}: column '{name}' has the unknown category '{min(unknown)}'. Known: {known}.")
        put(values[:, None] == np.array(categories)[None, :])
    for name, length in schema.vectors.items():
        put(arrays_of(columns[name], (length,), f"{source}: column '{name}'"))
    return features
