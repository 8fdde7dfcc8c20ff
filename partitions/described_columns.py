"""The columns of a table as tables of counts: numbers in bins, categories and targets by value, missing ones last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.partitions.feature_names import features_of
from florilegium.partitions.sources.tables import TableSchema
from florilegium.partitions.spec import DatasetSpec
from florilegium.tasks.task import TIMES

REACH, BINS = 4.0, 16
"""Bins of numbers reach this many deviations to both sides of the mean; further numbers are in one more bin each."""


@dataclass(frozen=True)
class Described:
    """One column.

    Attributes:
        name: the column's name.
        places: where its features are among those of an input; () for the target.
        words: its categories; () if it holds numbers.
        mean, std: a feature x stands for the number mean + std·x.
        missing: the place of the feature that says whether the value was missing; −1: none can be.
    """

    name: str
    places: tuple[int, ...]
    words: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    missing: int = -1

    @property
    def cells(self) -> int:
        """The number of cells: of categories, or of bins with one on each side; and one for what is missing."""
        return (len(self.words) or BINS + 2) + 1

    def lacks(self, x: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return in which rows of inputs x (n, d) the value was missing."""
        return x[:, self.missing] > 0.5 if self.missing >= 0 else np.zeros(len(x), bool)

    def count(self, x: NDArray[np.float64], y: NDArray[np.int64], center: float, scale: float) -> NDArray[np.float64]:
        """Return how many rows are in each cell, (cells,).

        Args:
            x: inputs, (n, d).
            y: strata of the targets, (n,), for the column without places.
            center, scale: of the column's feature, to which the bins belong.
        """
        if not self.places:
            codes = y
        elif self.words:
            codes = x[:, list(self.places)].argmax(axis=1)
        else:
            z = (x[:, self.places[0]] - center) / scale
            codes = np.clip(np.floor((z + REACH) * BINS / (2 * REACH)), -1, BINS).astype(np.int64) + 1
        codes = np.where(self.lacks(x), self.cells - 1, codes)
        return np.bincount(codes, minlength=self.cells).astype(np.float64)

    def edges(self, center: float, scale: float) -> NDArray[np.float64]:
        """Return the edges of the bins between the outermost ones, in the column's unit, (BINS + 1,)."""
        inner = center + scale * np.linspace(-REACH, REACH, BINS + 1)
        result: NDArray[np.float64] = self.mean + self.std * inner
        return result


def columns_of(spec: DatasetSpec) -> list[Described]:
    """Return the columns of a table that have a number or a category in each row, and its target if it has strata.

    Raises:
        ConfigurationError: if the dataset is no table.
    """
    if spec.kind not in ("table", "numbers"):
        raise ConfigurationError(
            f"dataset: 'describe' needs a table, and '{spec.name}' has inputs of kind '{spec.kind}'"
        )
    features, table = features_of(spec), spec.table or TableSchema()
    gone = {name: len(features) - len(table.indicators) + i for i, name in enumerate(table.indicators)}
    found = [] if spec.table else [Described(one.name, (i,)) for i, one in enumerate(features)]
    for name in table.columns:
        own = [i for i, one in enumerate(features) if one.column == name and i not in gone.values()]
        words: Sequence[str] = table.categories.get(name, ())
        if name in table.vectors or (not words and features[own[0]].name != name):
            continue
        first = features[own[0]]
        places = tuple(own) if words else (own[0],)
        found.append(Described(name, places, tuple(words), first.mean, first.std, gone.get(name, -1)))
    if spec.y and spec.learned.num_strata:
        name = spec.targets.columns[-1 if TIMES in spec.learned.provides else 0]  # whose strata are events
        found.append(Described(name, (), tuple(map(str, spec.learned.strata_names))))
    return found
