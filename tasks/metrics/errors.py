"""Metrics of numbers, in the targets' unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.metric import QUANTITIES, Metric, Seen
from florilegium.tasks.task import Figure

if TYPE_CHECKING:
    from torch import Tensor

SQUARES = "target_squares"
"""Mean over examples of the sum of their squared targets."""


class RMSE(Metric):
    """The root of the mean squared error, over examples and columns."""

    name = "rmse"
    title = "root of the mean squared error"
    fits = frozenset({QUANTITIES})

    @property
    def figure(self) -> Figure:
        """An error."""
        return Figure(low=0.0, higher=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The mean squared error."""
        return (self.shape.squares,)

    def rows(self, seen: Seen) -> Tensor:
        """Return the squared error of each example, (N, 1)."""
        return (seen.scores - seen.y).square().mean(dim=1, keepdim=True)

    def value(self, means: Mapping[str, float]) -> float:
        """Return the root."""
        return math.sqrt(means[self.shape.squares])

    def constant(self, y: NDArray[Any]) -> float:
        """Return the RMSE of always predicting the mean of each column."""
        return float(np.sqrt(np.var(y.astype(np.float64), axis=0).mean()))


class MAE(Metric):
    """The mean absolute error, over examples and columns."""

    name = "mae"
    title = "mean absolute error"
    fits = frozenset({QUANTITIES})
    columns = (name,)

    @property
    def figure(self) -> Figure:
        """An error."""
        return Figure(low=0.0, higher=False)

    def rows(self, seen: Seen) -> Tensor:
        """Return the absolute error of each example, (N, 1)."""
        return (seen.scores - seen.y).abs().mean(dim=1, keepdim=True)


class R2(Metric):
    """1 minus the sum of squared errors over that of the deviations from each column's mean, of all columns."""

    name = "r2"
    title = "share of the variance that is explained"
    fits = frozenset({QUANTITIES})

    @property
    def figure(self) -> Figure:
        """At most 1; always predicting the mean has 0."""
        return Figure(high=1.0, chance=0.0)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The mean squared error, the means of each column's targets, and that of the squared targets."""
        return (self.shape.squares, *(f"target_{column}" for column in range(self.shape.size)), SQUARES)

    def rows(self, seen: Seen) -> Tensor:
        """Return squared error, targets and squared targets of each example, (N, 2 + k)."""
        from torch import cat

        error = (seen.scores - seen.y).square().mean(dim=1, keepdim=True)
        return cat([error, seen.y, seen.y.square().sum(dim=1, keepdim=True)], dim=1)

    def value(self, means: Mapping[str, float]) -> float:
        """Return R²; NaN where the targets are constant."""
        columns = self.shape.size
        spread = means[SQUARES] - sum(means[f"target_{column}"] ** 2 for column in range(columns))
        certain = spread > 1e-12 * means[SQUARES]  # below that, it is the rounding of equal targets
        return 1 - means[self.shape.squares] * columns / spread if certain else math.nan
