"""The contract of a metric: a figure that says how well a model predicts, and from which sums it follows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.task import Figure, Targets

if TYPE_CHECKING:
    from torch import Tensor

ONE, MANY, QUANTITIES, TIMES = "one class", "several labels", "numbers", "times to an event"
"""What a task predicts, as far as metrics can tell: they name the ones for which they are defined."""


@dataclass(frozen=True)
class Shape:
    """What a metric is told of a task before there are data.

    Attributes:
        predicts: one of the words above.
        size: number of classes C, of labels k or of numbers k.
        binary: whether the classes are negative (0) and positive (1), so that figures are those of the positive one.
        targets: what the dataset says of its targets.
        squares: name of the mean squared error among what is measured: that of the loss if this is one.
    """

    predicts: str
    size: int
    binary: bool
    targets: Targets
    squares: str = "squared_error"


@dataclass(frozen=True)
class Seen:
    """Predictions and targets of N examples, or of N positions of examples.

    Attributes:
        scores: one class: probabilities (N, C); several labels: probabilities (N, k); numbers: (N, k), in the targets'
            unit; times: risks (N,), larger for earlier events.
        best: what is predicted: one class: classes (N,); several labels: 0 or 1, (N, k); otherwise the scores.
        y: one class: classes (N,); several labels: 0 or 1, (N, k); numbers: (N, k); times: times and events, (N, 2).
    """

    scores: Tensor
    best: Tensor
    y: Tensor


class Metric(ABC):
    """A figure. Its value for several clients together is exact if it follows from means over examples.

    Args:
        shape: what the task predicts.

    Attributes:
        name: its name in tables and files.
        title: what it is, in a few words.
        fits: what a task may predict.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    fits: ClassVar[frozenset[str]]

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    @abstractmethod
    def figure(self) -> Figure:
        """Its range, its direction and the level of chance."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the means over examples from which it follows; (): it follows from none."""
        return ()

    def rows(self, seen: Seen) -> Tensor | None:
        """Return what each example adds to the means of ``columns``, (N, m); None: only :meth:`means` is known."""
        return None

    def means(self, seen: Seen) -> dict[str, float]:
        """Return the means of ``columns`` over the examples."""
        rows = self.rows(seen)
        assert rows is not None
        return dict(zip(self.columns, rows.double().mean(dim=0).tolist(), strict=True))

    def value(self, means: Mapping[str, float]) -> float:
        """Return the figure that follows from means; NaN if it is undefined."""
        return means[self.name]

    def whole(self, seen: Seen) -> float:
        """Return the figure of these examples, if it follows from no means; NaN if it is undefined."""
        return self.value(self.means(seen))

    def constant(self, y: NDArray[Any]) -> float:
        """Return the figure of the best constant prediction for these targets; NaN if it is not known."""
        return math.nan if self.figure.chance is None else self.figure.chance


def function_metric(function: Callable[..., Any], reference: str) -> type[Metric]:
    """Return a metric that a function ``(predictions, targets) → number`` computes from NumPy arrays.

    Predictions are the ``scores`` of :class:`Seen`. An attribute ``higher = False`` of the function says that smaller
    values are better. Clients' values are averaged.
    """

    class Given(Metric):
        name = reference.rpartition(":")[2].rpartition(".")[2].replace("_", "-")
        title = f"the function {reference}"
        fits = frozenset({ONE, MANY, QUANTITIES, TIMES})

        @property
        def figure(self) -> Figure:
            return Figure(higher=bool(getattr(function, "higher", True)))

        def whole(self, seen: Seen) -> float:
            return float(function(np.asarray(seen.scores.cpu()), np.asarray(seen.y.cpu())))

    return Given
