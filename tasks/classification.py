"""One class of several for each example: cross-entropy, and the share of examples that are classified correctly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.common.text import listed
from florilegium.tasks.losses import LOGIT, LOGITS
from florilegium.tasks.measured import Measured
from florilegium.tasks.metric import ONE, Seen, Shape
from florilegium.tasks.task import CLASSES, LOSS, Targets

if TYPE_CHECKING:
    from torch import Tensor

ACCURACY = "accuracy"


class Classification(Measured):
    """Targets are classes 0..C−1, outputs C logits."""

    title = "predicts one of the classes"
    wants = "a class of C"
    example = Targets(("label",), 2)
    dtype = "int64"
    activated = "probabilities"
    decimals = ".6f"
    constantly = "always predicting the most frequent class"
    predicts = ONE
    form = LOGITS
    own_loss = "cross-entropy"
    own_metrics: ClassVar[tuple[str, ...]] = (ACCURACY,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the target of one example."""
        return ()

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input."""
        return (self.classes,)

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return self.targets.classes

    @cached_property
    def metric_shape(self) -> Shape:
        """Classes, as the data have them."""
        return Shape(ONE, self.classes, False, self.targets)

    @property
    def offers(self) -> frozenset[str]:
        """Each example has one class."""
        return frozenset({CLASSES})

    @property
    def family(self) -> str:
        """A binomial or multinomial distribution of one class, unless the loss is another."""
        if self.choices.loss or self.shape:
            return ""
        return "logistic" if self.classes == 2 else "multinomial"

    @property
    def guess(self) -> float | None:
        """The cross-entropy of guessing all classes alike, ln C; of other losses it is not known."""
        return math.log(self.classes) if self.classes > 1 and not self.choices.loss else None

    def _check_targets(self) -> None:
        if self.targets.numbers:
            raise ValueError(
                f"{self._name} needs a column of labels, and column '{self.targets.columns[0]}' holds numbers"
            )
        if self.targets.shape:
            raise ValueError(f"{self._name} needs one label for each example, and there are {self.targets.shape}")

    @property
    def _name(self) -> str:
        return type(self).__name__.lower()

    @property
    def num_strata(self) -> int:
        """The number of classes."""
        return self.classes

    def strata(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return the classes."""
        return y

    @property
    def strata_names(self) -> Sequence[int | str]:
        """The words of the data for the classes."""
        return self.targets.labels or range(self.classes)

    def error(self, constant: float, examples: int) -> float:
        """Return the standard error of a share."""
        return math.sqrt(constant * (1 - constant) / max(1, examples)) if 0 <= constant <= 1 else 0.0

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss; cross-entropy without weights in one operation."""
        from torch.nn.functional import cross_entropy

        plain = weights is None and not self.choices.loss
        return cross_entropy(outputs, y) if plain else super().loss(outputs, y, weights)

    def best(self, outputs: Tensor) -> Tensor:
        """Return the most likely class of each output, (n,)."""
        return outputs.argmax(dim=1)

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the probabilities of the classes, and the most likely one."""
        return Seen(outputs.softmax(dim=1), self.best(outputs), y)

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return loss, figures and ``sums``; loss and accuracy alone in two operations."""
        if self.choices.metrics or not len(y):
            return super().measure(outputs, y)
        return {LOSS: float(self.loss(outputs, y)), ACCURACY: float((self.best(outputs) == y).float().mean())}

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probabilities of the classes, (n, C)."""
        return outputs.softmax(dim=1)

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the most likely class of each input, as the data write it, and its probability."""
        best = activated.argmax(axis=1)
        labels = self.targets.labels or range(activated.shape[1])
        return {"class": [labels[i] for i in best], "probability": activated[np.arange(len(best)), best].tolist()}


class Binary(Classification):
    """Whether an example is positive: targets are 0 or 1, outputs one logit of being positive.

    The positive classes are those of ``positive``, by default the last of two classes.
    """

    title = "predicts whether an example is positive"
    wants = "one of two classes, or several that are positive (key `positive`)"
    example = Targets(("label",), 2)
    form = LOGIT
    has_positives = True
    activated = "probability"

    @property
    def outputs(self) -> tuple[int, ...]:
        """One logit."""
        return (1,)

    @property
    def classes(self) -> int:
        """Two: negative and positive."""
        return 2

    @cached_property
    def metric_shape(self) -> Shape:
        """Negative and positive."""
        return Shape(ONE, 2, True, self.targets)

    @property
    def offers(self) -> frozenset[str]:
        """Methods that need a logit for each class need more than one."""
        return frozenset()

    def _check_targets(self) -> None:
        super()._check_targets()
        self.positives()

    def positives(self) -> frozenset[int]:
        """Return the classes of the data that count as positive.

        Raises:
            ValueError: if a name is none of the data's, all classes are positive, or it is not said which are.
        """
        words = [str(label) for label in self.targets.labels or range(self.targets.classes)]
        chosen = listed(self.choices.positive)
        if unknown := [name for name in chosen if name not in words]:
            raise ValueError(f"positive: there is no class '{unknown[0]}'; the data have {', '.join(words[:20])}")
        if not chosen and len(words) != 2:
            raise ValueError(
                f"binary needs two classes, and the data have {len(words)}: name the positive ones by key positive"
            )
        if len({*chosen}) == len(words):
            raise ValueError("positive: all classes of the data are positive, and none is left to be negative")
        return frozenset(words.index(name) for name in chosen) or frozenset({1})

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return 1 for classes that are positive, else 0, (n,)."""
        return np.isin(stored, [*self.positives()]).astype(np.int64)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, (n,), of logits (n, 1)."""
        return super().losses(outputs[:, 0], y)

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss, weighted if there are weights."""
        losses = self.losses(outputs, y)
        return (losses if weights is None else weights * losses).mean()

    def best(self, outputs: Tensor) -> Tensor:
        """Return 1 where being positive is more likely, else 0, (n,)."""
        return (outputs[:, 0] > 0).long()

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the probabilities of negative and positive, and the more likely of both."""
        from torch import cat

        return Seen(cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=1), self.best(outputs), y)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probability of being positive, (n, 1)."""
        return outputs.sigmoid()

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return which of the two each input is, and the probability of being positive."""
        positive, labels = activated[:, 0], self.strata_names
        return {"class": [labels[int(p > 0.5)] for p in positive], "probability": positive.tolist()}

    @property
    def strata_names(self) -> Sequence[int | str]:
        """The words of the data, if a single one is negative or positive, else these words."""
        chosen, words = self.positives(), [*enumerate(self.targets.labels or range(self.targets.classes))]
        named = [[word for i, word in words if (i in chosen) == positive] for positive in (False, True)]
        return [
            group[0] if len(group) == 1 else word for group, word in zip(named, ("negative", "positive"), strict=True)
        ]
