"""One class out of C for each example: cross-entropy, and the share of examples that are classified correctly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.task import CLASSES, LOSS, Figure, Task

if TYPE_CHECKING:
    from torch import Tensor

ACCURACY = "accuracy"


class Classification(Task):
    """Targets are classes 0..C−1, outputs C logits."""

    title = "predicts one of the classes"
    dtype = "int64"
    activated = "probabilities"
    decimals = ".6f"
    constantly = "always predicting the most frequent class"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the target of one example."""
        return ()

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input."""
        return (self.targets.classes,)

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """The accuracy, 0..1."""
        return {ACCURACY: Figure(0.0, 1.0, percent=True, chance=1 / self.targets.classes, pooled="weighted")}

    @property
    def offers(self) -> frozenset[str]:
        """Each example has one class."""
        return frozenset({CLASSES})

    @property
    def guess(self) -> float | None:
        """The loss of guessing all classes alike, ln C."""
        return math.log(self.targets.classes) if self.targets.classes > 1 else None

    def check(self) -> None:
        """Check that targets are labels."""
        if self.targets.numbers:
            raise ValueError(
                f"classification needs a column of labels, and column '{self.targets.columns[0]}' holds numbers"
            )

    @property
    def num_strata(self) -> int:
        """The number of classes."""
        return self.targets.classes

    def strata(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return the classes."""
        return y

    def constant(self, y: NDArray[Any]) -> float:
        """Return the share of the most frequent class; NaN without examples."""
        return float(np.bincount(y).max() / len(y)) if len(y) else float("nan")

    def error(self, constant: float, examples: int) -> float:
        """Return the standard error of a share."""
        return math.sqrt(constant * (1 - constant) / max(1, examples))

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of each example, (n,)."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, y, reduction="none")

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean cross-entropy; without weights in one operation."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, y) if weights is None else super().loss(outputs, y, weights)

    parts = (LOSS, ACCURACY)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return each example's loss, and 1 if it is classified correctly, (n, 2)."""
        from torch import stack

        return stack([self.losses(outputs, y), (outputs.argmax(dim=1) == y).float()], dim=1)

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return loss and accuracy; NaN without examples."""
        if not len(y):
            return dict.fromkeys(self.reported, float("nan"))
        return {LOSS: float(self.loss(outputs, y)), ACCURACY: float((outputs.argmax(dim=1) == y).float().mean())}

    def pool(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the accuracy over all examples: the mean of clients' accuracies, weighted by their examples."""
        return {ACCURACY: means[ACCURACY]}

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probabilities of the classes, (n, C)."""
        return outputs.softmax(dim=1)

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the most likely class of each input, as the data write it, and its probability."""
        best = activated.argmax(axis=1)
        labels = self.targets.labels or range(activated.shape[1])
        return {"class": [labels[i] for i in best], "probability": activated[np.arange(len(best)), best].tolist()}
