"""Times to an event, some of them censored: the Cox model's partial likelihood, and the concordance index."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.tasks.losses import RISK
from florilegium.tasks.measured import Measured
from florilegium.tasks.metric import TIMES, Seen, Shape
from florilegium.tasks.task import TIMES as OF_EVENTS
from florilegium.tasks.task import Targets

if TYPE_CHECKING:
    from torch import Tensor


class Survival(Measured):
    """Targets are a time above 0 and whether the event happened then (1) or the time is censored (0).

    The output is one score s, larger for earlier events: the logarithm of a relative risk. The loss of a batch of B
    rows is the Cox model's negative log partial likelihood of the batch divided by B; only rows of a batch are at risk
    together. It is no mean of losses of single examples. A batch without events has loss 0.
    """

    title = "predicts which events come earlier"
    wants = "a time above 0, and whether the event happened then (1) or not yet (0)"
    example = Targets(("time", "event"))
    per_example = False
    activated = "risk"
    constantly = "equal risks"
    predicts = TIMES
    form = RISK
    own_loss = "cox"
    own_metrics = ("c-index",)

    def _check_targets(self) -> None:
        if not self.targets.numbers or len(self.targets.columns) != 2:
            raise ValueError(
                "survival needs two columns of numbers, the time and the event: target = ['time', 'event'], "
                f"label-column = 'time+event' (found: {', '.join(self.targets.columns) or 'none'})"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Time and event, (2,)."""
        return (2,)

    @property
    def outputs(self) -> tuple[int, ...]:
        """One score."""
        return (1,)

    @cached_property
    def metric_shape(self) -> Shape:
        """Times."""
        return Shape(TIMES, 1, False, self.targets)

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return times and events, (n, 2).

        Raises:
            DataError: if a time is not above 0, or an event is neither 0 nor 1.
        """
        y = super().encode(stored)
        time, event = self.targets.columns
        if len(wrong := np.flatnonzero(y[:, 0] <= 0)):
            raise DataError(
                f"task: survival needs times above 0, and column '{time}' has {y[wrong[0], 0]:g} in row {wrong[0]}, "
                f"{len(wrong)} rows in all"
            )
        if len(wrong := np.flatnonzero((y[:, 1] != 0) & (y[:, 1] != 1))):
            raise DataError(
                f"task: survival needs events of 0 or 1, and column '{event}' has {y[wrong[0], 1]:g} in row "
                f"{wrong[0]}; the order is label-column = 'time+event'"
            )
        return y

    def gap(self, y: NDArray[Any]) -> str:
        """Return that there is no event, if so: the partial likelihood is constant then."""
        event = self.targets.columns[1]
        return "" if y[:, 1].any() else f"survival needs events, and column '{event}' is 0 in all training rows"

    @property
    def offers(self) -> frozenset[str]:
        """Times to an event."""
        return frozenset({OF_EVENTS})

    @property
    def num_strata(self) -> int:
        """Two: censored, and events."""
        return 2

    def strata(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return the events."""
        return y[:, 1].astype(np.int64)

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean of the terms; ``weights`` weigh the terms of events, not who is at risk."""
        terms = self._loss(outputs, y, self.choices)
        return (terms if weights is None else weights * terms).mean()

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the scores, which order as risks do."""
        return Seen(outputs[:, 0], outputs[:, 0], y)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return relative risks exp s, (n, 1)."""
        return outputs.clamp(max=80).exp()  # larger ones are infinite in single precision

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the relative risk of each input."""
        return {"risk": activated[:, 0].tolist()}
