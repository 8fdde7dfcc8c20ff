"""Metrics of classes that follow from counts: of right predictions, of each class's hits, of confidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.metric import MANY, ONE, Metric, Seen
from florilegium.tasks.task import Figure

if TYPE_CHECKING:
    from torch import Tensor

_BINS = 15
"""Number of bins of the calibration error, as in Guo et al. 2017."""


class Accuracy(Metric):
    """The share of right predictions; of several labels, over examples and labels."""

    name = "accuracy"
    title = "share of right predictions"
    fits = frozenset({ONE, MANY})
    columns = (name,)

    @cached_property
    def figure(self) -> Figure:
        """A share; guessing one of C classes is right one time in C."""
        chance = 1 / self.shape.size if self.shape.predicts == ONE else None
        return Figure(0.0, 1.0, percent=True, chance=chance, pooled="weighted")

    def rows(self, seen: Seen) -> Tensor:
        """Return 1 for a right prediction, else 0, (N, 1); of several labels, the share of right ones."""
        if self.shape.predicts == ONE:
            return (seen.best == seen.y).float()[:, None]
        return (seen.best == seen.y).float().mean(dim=1, keepdim=True)

    def constant(self, y: NDArray[Any]) -> float:
        """Return the share of the most frequent class."""
        if self.shape.predicts == ONE:
            return float(np.bincount(y).max() / len(y))
        positive = y.mean(axis=0)
        return float(np.maximum(positive, 1 - positive).mean())


class _ByClass(Metric):
    """A metric that follows from three counts a class: of its examples, its predictions, and of hits, which are both.

    Columns are shares of all examples. Classes without examples and predictions count for nothing.
    """

    fits = frozenset({ONE, MANY})
    _RANGE: ClassVar[Figure] = Figure(0.0, 1.0, percent=True)

    @property
    def figure(self) -> Figure:
        """A share."""
        return self._RANGE

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the counts, of all classes each."""
        return tuple(f"{what}_{label}" for what in ("hits", "actual", "predicted") for label in range(self.shape.size))

    def rows(self, seen: Seen) -> Tensor:
        """Return hits, examples and predictions of each class, 0 or 1, (N, 3·C)."""
        from torch import cat
        from torch.nn.functional import one_hot

        if self.shape.predicts == ONE:
            actual, predicted = one_hot(seen.y, self.shape.size), one_hot(seen.best, self.shape.size)
        else:
            actual, predicted = seen.y.long(), seen.best.long()
        return cat([actual * predicted, actual, predicted], dim=1).float()

    def counts(self, means: Mapping[str, float]) -> tuple[NDArray[np.float64], ...]:
        """Return hits, examples and predictions, (C,) each; of a binary task those of the positive class, (1,)."""
        hits, actual, predicted = np.array([means[name] for name in self.columns]).reshape(3, self.shape.size)
        chosen = slice(1, 2) if self.positive_only and self.shape.binary else slice(None)
        return hits[chosen], actual[chosen], predicted[chosen]

    positive_only: ClassVar[bool] = True
    """Whether a binary task has the figure of its positive class."""


def _mean(parts: NDArray[np.float64], of: NDArray[np.float64]) -> float:
    """Return the mean of the ratios whose denominators are not 0; NaN if all are."""
    known = of > 1e-12
    return float((parts[known] / of[known]).mean()) if known.any() else math.nan


class F1(_ByClass):
    """The mean of the classes' F1 scores, 2·hits / (examples + predictions); of two classes, the positive one's."""

    name = "f1"
    title = "F1 score, the mean over classes (macro); of the positive class if the task is binary"

    def value(self, means: Mapping[str, float]) -> float:
        """Return F1; NaN if no class has examples or predictions."""
        hits, actual, predicted = self.counts(means)
        return _mean(2 * hits, actual + predicted)


class Dice(F1):
    """The Dice coefficient of regions: F1 of positions, the mean over classes."""

    name = "dice"
    title = "Dice coefficient, the mean over classes"


class F1Micro(_ByClass):
    """F1 of all classes' counts together: 2·Σ hits / Σ (examples + predictions)."""

    name = "f1-micro"
    title = "F1 score of all labels together (micro)"

    def value(self, means: Mapping[str, float]) -> float:
        """Return F1; NaN if there are neither examples nor predictions."""
        hits, actual, predicted = self.counts(means)
        return _mean(2 * hits.sum(keepdims=True), (actual + predicted).sum(keepdims=True))


class IoU(_ByClass):
    """Intersection over union (Jaccard), the mean over classes."""

    name = "iou"
    title = "intersection over union (Jaccard), the mean over classes"

    def value(self, means: Mapping[str, float]) -> float:
        """Return hits / (examples + predictions − hits)."""
        hits, actual, predicted = self.counts(means)
        return _mean(hits, actual + predicted - hits)


class BalancedAccuracy(_ByClass):
    """The mean over classes of the share of their examples that are found (recall)."""

    name = "balanced-accuracy"
    title = "recall, the mean over classes that have examples"
    positive_only = False

    @cached_property
    def figure(self) -> Figure:
        """A share; a constant prediction finds one class of C."""
        return Figure(0.0, 1.0, percent=True, chance=1 / self.shape.size if self.shape.predicts == ONE else 0.5)

    def value(self, means: Mapping[str, float]) -> float:
        """Return the mean recall; of several labels, the mean of recall and specificity."""
        hits, actual, predicted = self.counts(means)
        if self.shape.predicts == ONE:
            return _mean(hits, actual)
        missed = 1 - actual - predicted + hits
        return _mean(np.concatenate([hits, missed]), np.concatenate([actual, 1 - actual]))


class Brier(Metric):
    """The Brier score (1950): the squared error of probabilities; of C classes, summed over them; of labels, the mean.

    A binary task has that of the positive class, half of the sum.
    """

    name = "brier"
    title = "Brier score, the squared error of probabilities"
    fits = frozenset({ONE, MANY})
    columns = (name,)

    @property
    def figure(self) -> Figure:
        """At most 1, or 2 for several classes."""
        return Figure(0.0, 2.0 if self.shape.predicts == ONE and not self.shape.binary else 1.0, higher=False)

    def rows(self, seen: Seen) -> Tensor:
        """Return the score of each example, (N, 1)."""
        from torch.nn.functional import one_hot

        if self.shape.predicts == MANY:
            return (seen.scores - seen.y).square().mean(dim=1, keepdim=True)
        total = (seen.scores - one_hot(seen.y, self.shape.size)).square().sum(dim=1, keepdim=True)
        return total / 2 if self.shape.binary else total


class CalibrationError(Metric):
    """The expected calibration error (Naeini et al. 2015): how far confidence is from the share of right predictions.

    Confidence is the probability of the predicted class; its differences to the share of right predictions, in 15 bins
    of equal width, are averaged with the bins' shares of examples. Of several labels, each label is a prediction.
    """

    name = "calibration-error"
    title = "expected calibration error of the predicted class, 15 bins"
    fits = frozenset({ONE, MANY})
    columns = tuple(f"{what}_{place}" for what in ("confidence", "right") for place in range(_BINS))

    @property
    def figure(self) -> Figure:
        """A share."""
        return Figure(0.0, 1.0, higher=False)

    def rows(self, seen: Seen) -> Tensor:
        """Return the confidence and whether it is right, each in the column of its bin, (N, 2·15)."""
        from torch import stack, where
        from torch.nn.functional import one_hot

        if self.shape.predicts == ONE:
            confidence = seen.scores.gather(1, seen.best[:, None])
            right = (seen.best == seen.y)[:, None]
        else:
            confidence = where(seen.best > 0.5, seen.scores, 1 - seen.scores)
            right = seen.best == seen.y
        # Bins are open below and closed above, so that a certain prediction is in the last.
        places = one_hot(((confidence * _BINS).ceil().long() - 1).clamp(0, _BINS - 1), _BINS).to(confidence.dtype)
        parts = stack([confidence, right.to(confidence.dtype)], dim=1)  # (N, 2, labels)
        return (parts[..., None] * places[:, None]).mean(dim=2).flatten(1)

    def value(self, means: Mapping[str, float]) -> float:
        """Return the sum over bins of |mean confidence − share of right predictions|, weighted by their shares."""
        confidence, right = np.array([means[name] for name in self.columns]).reshape(2, _BINS)
        return float(np.abs(confidence - right).sum())


class Perplexity(Metric):
    """exp of the mean cross-entropy of a position."""

    name = "perplexity"
    title = "exp of the mean cross-entropy"
    fits = frozenset({ONE})
    columns = ("surprise",)

    @property
    def figure(self) -> Figure:
        """At least 1; guessing has C."""
        return Figure(1.0, higher=False, chance=float(self.shape.size))

    def rows(self, seen: Seen) -> Tensor:
        """Return −log p of the class of each position, (N, 1)."""
        return -seen.scores.clamp(min=1e-37).log().gather(1, seen.y[:, None])

    def value(self, means: Mapping[str, float]) -> float:
        """Return the perplexity; NaN if it is too large for a number."""
        return math.exp(means["surprise"]) if means["surprise"] < 700 else math.nan
