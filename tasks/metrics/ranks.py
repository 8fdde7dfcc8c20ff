"""Metrics of ranks, by scikit-learn: clients' values are averaged, since they follow from no sums."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.metric import MANY, ONE, Metric, Seen
from florilegium.tasks.task import Figure


class _OneAgainstRest(Metric):
    """The mean over classes, or labels, of a figure of one against the rest; of a binary task the positive class's.

    Classes without examples, or without others, are left out; NaN if none is left.
    """

    fits = frozenset({ONE, MANY})

    def whole(self, seen: Seen) -> float:
        """Return the mean over the classes for which the figure is defined."""
        scores, y = np.asarray(seen.scores.double().cpu()), np.asarray(seen.y.cpu())
        if not np.isfinite(scores).all():  # of a model that has diverged
            return math.nan
        if self.shape.predicts == ONE:
            y = y[:, None] == np.arange(self.shape.size)
        if self.shape.binary:
            scores, y = scores[:, 1:], y[:, 1:]
        known = [
            self.of(scores[:, label], y[:, label]) for label in range(y.shape[1]) if len(np.unique(y[:, label])) == 2
        ]
        return float(np.mean(known)) if known else math.nan

    @abstractmethod
    def of(self, scores: NDArray[np.float64], y: NDArray[np.bool_]) -> float:
        """Return the figure of scores (N,) for whether each example belongs to the class (N,), some do, some do not."""


class Auroc(_OneAgainstRest):
    """The area under the receiver operating characteristic: how often a positive example has the larger score."""

    name = "auroc"
    title = "area under the ROC curve, the mean over classes (one against the rest)"

    @property
    def figure(self) -> Figure:
        """A share; scores without any use have one half."""
        return Figure(0.0, 1.0, chance=0.5)

    def of(self, scores: NDArray[np.float64], y: NDArray[np.bool_]) -> float:
        """Return the area."""
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(y, scores))


class AveragePrecision(_OneAgainstRest):
    """Average precision: the precision at each recall, weighted by the recall gained."""

    name = "average-precision"
    title = "average precision, the mean over classes (one against the rest)"

    @property
    def figure(self) -> Figure:
        """A share; scores without any use have that of the positive examples."""
        return Figure(0.0, 1.0)

    def of(self, scores: NDArray[np.float64], y: NDArray[np.bool_]) -> float:
        """Return the average precision."""
        from sklearn.metrics import average_precision_score

        return float(average_precision_score(y, scores))
