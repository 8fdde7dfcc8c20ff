"""Counts to predict: the output is the logarithm of the expected number, as in a Poisson regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.tasks.losses import LOG_RATE
from florilegium.tasks.measured import Measured, OfColumns
from florilegium.tasks.metric import QUANTITIES, Seen, Shape
from florilegium.tasks.task import Targets

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = 80.0
"""Larger logarithms of a number are infinite in single precision."""


class Counts(OfColumns, Measured):
    """Targets are k numbers of at least 0, outputs the logarithms of their expectations μ.

    The loss is half of the Poisson distribution's deviance, μ − y + y·log(y/μ), a mean over examples and columns.
    """

    title = "predicts counts"
    wants = "k numbers of at least 0"
    example = Targets(("y",))
    constantly = "always predicting the mean"
    predicts = QUANTITIES
    form = LOG_RATE
    own_loss = "poisson"
    own_metrics = ("rmse", "mae", "r2")

    def _check_targets(self) -> None:
        if not self.targets.numbers or self.targets.shape:
            raise ValueError("counts needs a column of numbers of at least 0 for each target")

    @property
    def metric_shape(self) -> Shape:
        """Numbers."""
        return Shape(QUANTITIES, self.shape[0], False, self.targets, "squared_error")

    @property
    def family(self) -> str:
        """A Poisson distribution of a single count."""
        return "poisson" if self.shape == (1,) else ""

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the counts, (n, k).

        Raises:
            DataError: if one is below 0.
        """
        y = super().encode(stored)
        if (y < 0).any():
            row = int(np.argmax((y < 0).any(axis=1)))
            raise DataError(f"task: counts are at least 0, and row {row} has {y[row].min():g}")
        return y

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the loss of each example and what it adds to ``columns``, in doubles."""
        return super().rows(outputs.double(), y.double())

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the expected numbers."""
        expected = self.activate(outputs)
        return Seen(expected, expected, y)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return expected numbers, (n, k)."""
        return outputs.clamp(max=_LARGEST).exp()

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the expected numbers: a column for each target, "value" if there is only one."""
        names = ("value",) if self.shape == (1,) else self.targets.columns
        return dict(zip(names, activated.T.tolist(), strict=True))
