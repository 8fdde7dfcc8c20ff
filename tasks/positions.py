"""A class for each position of an example: labels of a sequence, the next token, the pixels of an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.tasks.classification import Classification
from florilegium.tasks.losses import IGNORED
from florilegium.tasks.metric import ONE, Seen, Shape
from florilegium.tasks.task import LOSS, Targets

if TYPE_CHECKING:
    from torch import Tensor

POSITIONS = "positions"
"""Mean over examples of the number of positions that count."""


class SequenceLabels(Classification):
    """Targets are classes (n, *positions), outputs logits (n, C, *positions); ``IGNORED`` positions do not count.

    The loss of an example is the mean over its positions. Figures are those of all positions together, so that a long
    example counts more than a short one.
    """

    title = "predicts a class for each position"
    wants = "a class for each position, (n, length); −100 does not count"
    example = Targets(("y",), 3, (), (4,))
    constantly = "always predicting the most frequent class"

    def _check_targets(self) -> None:
        if not self.shape or self.classes < 2:
            raise ValueError("it needs a class for each position of an example: an array y of shape (n, length)")

    @property
    def shape(self) -> tuple[int, ...]:
        """The positions of one example, such as (length,)."""
        return self.targets.shape

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input, (C, *positions)."""
        return (self.classes, *self.shape)

    @cached_property
    def metric_shape(self) -> Shape:
        """Classes of positions."""
        return Shape(ONE, self.classes, False, self.targets)

    @property
    def offers(self) -> frozenset[str]:
        """An example has many classes."""
        return frozenset()

    @property
    def num_strata(self) -> int:
        """None: an example has many classes."""
        return 0

    def strata(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return 0 for each example."""
        return np.zeros(len(y), np.int64)

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the classes, (n, *positions).

        Raises:
            DataError: if one is neither a class nor ``IGNORED``.
        """
        y = super().encode(stored)
        wrong = np.argwhere((y != IGNORED) & ((y < 0) | (y >= self.classes)))
        if len(wrong):
            raise DataError(
                f"task: row {wrong[0][0]} has the class {y[tuple(wrong[0])]}; classes are 0 to {self.classes - 1}, or "
                f"{IGNORED} for positions that do not count"
            )
        return y

    def constant(self, y: NDArray[Any]) -> float:
        """Return the main figure of always predicting the most frequent class; NaN if it is not known."""
        return super().constant(y[y != IGNORED])

    def error(self, constant: float, examples: int) -> float:
        """Return the standard error of a share of positions, as if those of an example said the same."""
        return super().error(constant, examples)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of each example's positions, (n,); 0 if none counts."""
        y = self._counted(outputs, y)
        each = self._loss(outputs, y, self.choices)
        if each.dim() == 1:
            return each
        return each.flatten(1).sum(dim=1) / (y != IGNORED).flatten(1).sum(dim=1).clamp(min=1)

    def _counted(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the targets of those positions that have outputs; a network may leave out what is padded behind them.

        Raises:
            ValueError: if a position that counts has none.
        """
        length = outputs.shape[-1]
        if y.dim() != 2 or y.shape[1] == length:
            return y
        if (y[:, length:] != IGNORED).any():
            raise ValueError(f"the network has outputs for {length} positions, and there are targets behind them")
        return y[:, :length]

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss of examples, weighted if there are weights."""
        losses = self.losses(outputs, y)
        return (losses if weights is None else weights * losses).mean()

    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return the probabilities at the positions that count, of all examples one after the other."""
        y = self._counted(outputs, y)
        counts = y != IGNORED
        logits = outputs.movedim(1, -1)[counts]
        return Seen(logits.softmax(dim=1), logits.argmax(dim=1), y[counts])

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """The number of positions, and what figures follow from: sums over positions, means over examples."""
        return (POSITIONS, *(f"sum_{name}" for name in self.columns)) if self.columns else ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns of :meth:`rows`."""
        return (LOSS, *self.sums) if self._by_rows else ()

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return loss and number of positions of each example, and the sums over them, in doubles."""
        from torch import arange, cat

        if not self._by_rows:
            return None
        seen, counted = self.seen(outputs, y), (y != IGNORED).flatten(1).sum(dim=1)
        owners = arange(len(y), device=y.device).repeat_interleave(counted)
        found: dict[str, Tensor] = {}
        for metric in self.metrics.values():
            rows = metric.rows(seen)
            assert rows is not None
            found |= dict(zip(metric.columns, rows.double().unbind(1), strict=True))
        losses = self.losses(outputs, y).double()
        sums = [losses.new_zeros(len(y)).index_add_(0, owners, found[name])[:, None] for name in self.columns]
        return cat([losses[:, None], counted.double()[:, None], *sums], dim=1)

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return loss, figures and ``sums``; NaN for what is undefined, and without examples."""
        if self._by_rows or not len(y):
            return super(Classification, self).measure(outputs, y)
        seen = self.seen(outputs, y)
        means = {LOSS: float(self.loss(outputs, y)), POSITIONS: len(seen.y) / len(y)}
        for metric in self.metrics.values():
            of = metric.means(seen) if metric.columns else {}
            means |= {f"sum_{name}": value * means[POSITIONS] for name, value in of.items()}
        found = self.pool(means) | {n: one.whole(seen) for n, one in self.metrics.items() if not one.columns}
        return {name: (means | found)[name] for name in self.reported}

    def pool(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of all positions together; NaN without any."""
        if not self.columns or not means[POSITIONS]:
            return {name: float("nan") for name, metric in self.metrics.items() if metric.columns}
        return super().pool({name: means[f"sum_{name}"] / means[POSITIONS] for name in self.columns})

    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the most likely classes of each input, as the data write them, joined by blanks."""
        return self.predictions_at(activated, np.zeros((len(activated), *activated.shape[2:]), np.int64))

    def predictions_at(self, activated: NDArray[Any], y: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the most likely classes, joined by blanks, without positions that are ``IGNORED`` in y."""
        labels = [str(label) for label in self.targets.labels or range(self.classes)]
        return {"classes": [" ".join(labels[i] for i in row) for row in self._chosen(activated, y)]}

    @staticmethod
    def _chosen(activated: NDArray[Any], y: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
        """Yield each input's most likely classes where y counts; a network may leave out what is padded behind."""
        for row, own in zip(activated.argmax(axis=1), y, strict=True):
            yield row[own[..., : row.shape[-1]] != IGNORED]


class NextToken(SequenceLabels):
    """The next token of a sequence at each of its positions: targets are the inputs, moved by one.

    The last position has no next token in the input and does not count; nor does padding to be predicted. Where inputs
    are prompts with responses behind them, only tokens of responses count.
    """

    title = "predicts the next token at each position"
    wants = "none: the inputs, moved by one"
    example = Targets((), 0, (), (), (4,), 3)
    own_metrics = ("perplexity", "accuracy")
    constantly = "guessing"

    def _check_targets(self) -> None:
        if not self.targets.codes:
            raise ValueError("next-token needs inputs that are texts or tokens")

    @property
    def shape(self) -> tuple[int, ...]:
        """The positions of one example, (length,)."""
        return self.targets.inputs

    @property
    def classes(self) -> int:
        """The number of different tokens."""
        return self.targets.codes

    def derived(self, x: NDArray[Any], stored: NDArray[Any]) -> NDArray[Any]:
        """Return the inputs (n, length), moved by one.

        Args:
            x: the inputs.
            stored: with responses, the place of each one's first token, (n,); not used without.
        """
        y = np.full(x.shape, IGNORED, np.int64)
        y[:, :-1] = x[:, 1:]
        y[y == self.targets.padding] = IGNORED
        if self.targets.responses:
            y[np.arange(1, x.shape[1] + 1) < stored[:, None]] = IGNORED
        return y

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return the targets as they are; they come from the inputs (:meth:`derived`)."""
        return stored

    def predictions_at(self, activated: NDArray[Any], y: NDArray[Any]) -> dict[str, list[Any]]:
        """Return the most likely token after each position that y, (n, length), does not ignore, joined by blanks."""
        return {"classes": [" ".join(map(str, row)) for row in self._chosen(activated, y)]}


class Segmentation(SequenceLabels):
    """A class for each pixel of an image."""

    title = "predicts a class for each pixel"
    wants = "a class for each pixel, (n, height, width)"
    example = Targets(("mask",), 3, (), (4, 4))
    own_metrics = ("dice", "iou")

    def _check_targets(self) -> None:
        super()._check_targets()
        if len(self.shape) != 2:
            raise ValueError("segmentation needs a class for each pixel: an array y of shape (n, height, width)")
