"""Numbers to predict, one or several for each example: squared errors, and figures in the targets' unit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.task import LOSS, NUMBERS, Figure, Task

if TYPE_CHECKING:
    from torch import Tensor

RMSE, MAE, R2 = "rmse", "mae", "r2"
SQUARES = "target_squares"
"""Mean over examples of the sum of their squared targets."""


class Regression(Task):
    """Targets are k numbers, outputs as many; the loss is the squared error, a mean over examples and columns.

    RMSE and MAE are over examples and columns, too. R² is 1 minus the sum of squared errors over that of the
    deviations from each column's mean, of all columns together.
    """

    title = "predicts numbers"
    constantly = "always predicting the mean"
    figures: ClassVar[Mapping[str, Figure]] = {
        RMSE: Figure(low=0.0, higher=False),
        MAE: Figure(low=0.0, higher=False),
        R2: Figure(high=1.0, chance=0.0),
    }

    def check(self) -> None:
        """Check that there is a column of targets."""
        if not self.targets.columns:
            raise ValueError("regression needs a column of targets, and the dataset has none")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the target of one example, (k,)."""
        return (len(self.targets.columns),)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input, (k,)."""
        return self.shape

    @property
    def offers(self) -> frozenset[str]:
        """A single number is what closed forms of regression need."""
        return frozenset({NUMBERS} if self.shape == (1,) else ())

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """The means of each column's targets and of the squared targets, from which R² follows."""
        return (*(f"target_{column}" for column in range(self.shape[0])), SQUARES)

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns of :meth:`rows`."""
        return (LOSS, MAE, *self.sums)

    def constant(self, y: NDArray[Any]) -> float:
        """Return the RMSE of always predicting the mean of each column; NaN without examples."""
        return float(np.sqrt(np.var(y.astype(np.float64), axis=0).mean())) if len(y) else float("nan")

    def error(self, constant: float, examples: int) -> float:
        """Return about the standard error of a root mean square."""
        return constant / math.sqrt(2 * max(1, examples) * self.shape[0])

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the squared error of each example, the mean over columns, (n,)."""
        return (outputs - y).square().mean(dim=1)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return squared error, absolute error, targets and squared targets of each example, (n, 3 + k), in doubles."""
        from torch import cat

        outputs, y = outputs.double(), y.double()
        errors = outputs - y
        means = [part.mean(dim=1, keepdim=True) for part in (errors.square(), errors.abs())]
        return cat([*means, y, y.square().sum(dim=1, keepdim=True)], dim=1)

    def pool(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return RMSE, MAE and R² of all examples; R² is NaN where the targets are constant."""
        columns = self.shape[0]
        spread = means[SQUARES] - sum(means[f"target_{column}"] ** 2 for column in range(columns))
        certain = spread > 1e-12 * means[SQUARES]  # below that, it is the rounding of equal targets
        explained = 1 - means[LOSS] * columns / spread if certain else math.nan
        return {RMSE: math.sqrt(means[LOSS]), MAE: means[MAE], R2: explained}

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the predicted numbers: a column for each target, "value" if there is only one."""
        names = ("value",) if self.shape == (1,) else self.targets.columns
        return dict(zip(names, activated.T.tolist(), strict=True))
