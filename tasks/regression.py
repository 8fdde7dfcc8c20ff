"""Numbers to predict, one or several for each example: squared errors, and figures in the targets' unit."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from florilegium.tasks.losses import NUMBER
from florilegium.tasks.measured import Measured
from florilegium.tasks.metric import QUANTITIES, Seen, Shape
from florilegium.tasks.task import LOSS, NUMBERS, Targets

if TYPE_CHECKING:
    from torch import Tensor


class Regression(Measured):
    """Targets are k numbers, outputs as many; the loss is the squared error, a mean over examples and columns."""

    title = "predicts numbers"
    wants = "k numbers"
    example = Targets(("y",))
    constantly = "always predicting the mean"
    predicts = QUANTITIES
    form = NUMBER
    own_loss = "squared"
    own_metrics = ("rmse", "mae", "r2")

    def _check_targets(self) -> None:
        if not self.targets.columns:
            raise ValueError("regression needs a column of targets, and the dataset has none")
        if self.targets.shape:
            raise ValueError(f"regression needs one number a column, and there are {self.targets.shape}")

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the target of one example, (k,)."""
        return (len(self.targets.columns),)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input, (k,)."""
        return self.shape

    @cached_property
    def metric_shape(self) -> Shape:
        """Numbers; a loss of squared errors is their mean."""
        squares = LOSS if self.choices.loss in ("", self.own_loss) else "squared_error"
        return Shape(QUANTITIES, self.shape[0], False, self.targets, squares)

    @property
    def offers(self) -> frozenset[str]:
        """A single number with squared errors is what closed forms of regression need."""
        return frozenset({NUMBERS} if self.shape == (1,) and self.choices.loss in ("", self.own_loss) else ())

    def error(self, constant: float, examples: int) -> float:
        """Return about the standard error of a root mean square."""
        return constant / math.sqrt(2 * max(1, examples) * self.shape[0]) if self.main == "rmse" else 0.0

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the loss of each example and what it adds to ``columns``, in doubles."""
        return super().rows(outputs.double(), y.double())

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the predicted numbers."""
        return Seen(outputs, outputs, y)

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the predicted numbers: a column for each target, "value" if there is only one."""
        names = ("value",) if self.shape == (1,) else self.targets.columns
        return dict(zip(names, activated.T.tolist(), strict=True))
