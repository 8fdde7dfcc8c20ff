"""Several labels for each example, each of which applies or not."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.tasks.losses import LOGIT
from florilegium.tasks.measured import Measured, OfColumns
from florilegium.tasks.metric import MANY, Seen, Shape
from florilegium.tasks.task import Targets

if TYPE_CHECKING:
    from torch import Tensor


class MultiLabel(OfColumns, Measured):
    """Targets are k columns of 0 and 1, outputs k logits; the loss is a mean over examples and labels."""

    title = "predicts which of several labels apply"
    wants = "k columns of 0 and 1"
    example = Targets(("a", "b"))
    activated = "probabilities"
    decimals = ".6f"
    constantly = "always predicting what is more frequent of each label"
    predicts = MANY
    form = LOGIT
    own_loss = "cross-entropy"
    own_metrics = ("f1", "accuracy")

    def _check_targets(self) -> None:
        if not self.targets.numbers or len(self.targets.columns) < 2:
            raise ValueError(
                "multi-label needs two or more columns of 0 and 1: target = ['a', 'b'], label-column = 'a+b'"
            )

    @cached_property
    def metric_shape(self) -> Shape:
        """The labels."""
        return Shape(MANY, self.shape[0], False, self.targets)

    @property
    def guess(self) -> float | None:
        """The cross-entropy of probabilities of one half, ln 2; of other losses it is not known."""
        return None if self.choices.loss else math.log(2)

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the targets, (n, k).

        Raises:
            DataError: if one is neither 0 nor 1.
        """
        y = super().encode(stored)
        wrong = np.argwhere((y != 0) & (y != 1))
        if len(wrong):
            row, column = wrong[0]
            raise DataError(
                f"task: multi-label needs 0 or 1, and column '{self.targets.columns[column]}' has {y[row, column]:g} "
                f"in row {row}"
            )
        return y

    def error(self, constant: float, examples: int) -> float:
        """Return at most the standard error of a share."""
        return math.sqrt(constant * (1 - constant) / max(1, examples)) if 0 <= constant <= 1 else 0.0

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the probability of each label, and whether it is more likely than not."""
        return Seen(outputs.sigmoid(), (outputs > 0).to(y.dtype), y)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label, (n, k)."""
        return outputs.sigmoid()

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return a column of probabilities for each label."""
        return dict(zip(self.targets.columns, activated.T.tolist(), strict=True))
