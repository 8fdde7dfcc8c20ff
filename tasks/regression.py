"""Numbers to predict, one or several for each example: squared errors, and figures in the targets' unit."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from florilegium.tasks.losses import NUMBER
from florilegium.tasks.measured import Measured, OfColumns
from florilegium.tasks.metric import QUANTITIES, Seen, Shape
from florilegium.tasks.task import LOSS, NUMBERS, Targets

if TYPE_CHECKING:
    from torch import Tensor


class Regression(OfColumns, Measured):
    """Targets are k numbers, outputs as many; the loss is the squared error, a mean over examples and columns.

    With ``target_scale = "standard"`` outputs are (y − mean) / deviation, and so are errors in the loss; figures and
    predictions are in the targets' unit.
    """

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
        if self.choices.scales and len(self.choices.scales) != len(self.targets.columns):
            raise ValueError(f"there are {len(self.choices.scales)} scales for {len(self.targets.columns)} targets")
        if self.targets.shape:
            raise ValueError(f"regression needs one number a column, and there are {self.targets.shape}")

    @cached_property
    def metric_shape(self) -> Shape:
        """Numbers; a loss of squared errors is their mean."""
        squares = LOSS if self._plain else "squared_error"
        return Shape(QUANTITIES, self.shape[0], False, self.targets, squares)

    @property
    def offers(self) -> frozenset[str]:
        """A single number with squared errors is what closed forms of regression need."""
        return frozenset({NUMBERS} if self.shape == (1,) and self._plain else ())

    @property
    def family(self) -> str:
        """Normal errors of a single number."""
        return "linear" if NUMBERS in self.offers else ""

    @property
    def _plain(self) -> bool:
        """Whether the loss is the squared error in the targets' unit."""
        return self.choices.loss in ("", self.own_loss) and not self.choices.scales

    def _moments(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of the targets, (k,) each."""
        mean, std = like.new_tensor(self.choices.scales).unbind(1)
        return mean, std

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, (n,), in the outputs' unit."""
        if self.choices.scales:
            mean, std = self._moments(y)
            y = (y - mean) / std
        return super().losses(outputs, y)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return outputs in the targets' unit, (n, k)."""
        if not self.choices.scales:
            return outputs
        mean, std = self._moments(outputs)
        return outputs * std + mean

    def error(self, constant: float, examples: int) -> float:
        """Return about the standard error of a root mean square."""
        return constant / math.sqrt(2 * max(1, examples) * self.shape[0]) if self.main == "rmse" else 0.0

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the loss of each example and what it adds to ``columns``, in doubles."""
        return super().rows(outputs.double(), y.double())

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the predicted numbers."""
        numbers = self.activate(outputs)
        return Seen(numbers, numbers, y)

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the predicted numbers: a column for each target, "value" if there is only one."""
        names = ("value",) if self.shape == (1,) else self.targets.columns
        return dict(zip(names, activated.T.tolist(), strict=True))
