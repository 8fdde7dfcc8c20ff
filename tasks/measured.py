"""Tasks whose figures are metrics by name, and whose loss has alternatives: all of the suite's own."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError
from florilegium.common.plugins import Registry
from florilegium.common.text import listed
from florilegium.tasks.losses import LOG_RATE, LOGIT, LOGITS, NUMBER, RISK, Loss
from florilegium.tasks.metric import Metric, Seen, Shape, function_metric
from florilegium.tasks.task import LOSS, Figure, Targets, Task
from florilegium.tasks.weights import check_class_weights

if TYPE_CHECKING:
    from torch import Tensor

    from florilegium.tasks.losses import Function


def _read_metric(found: Any, reference: str) -> type[Metric]:
    """Return the metric that a package provides: a subclass of :class:`Metric`, or a function."""
    if isinstance(found, type) and issubclass(found, Metric):
        return found
    if isinstance(found, type) or not callable(found):
        raise TypeError(
            f"expected a function (predictions, targets) → number, or a subclass of Metric (found: {found!r:.60})"
        )
    return function_metric(found, reference)


def _read_loss(found: Any, reference: str) -> Loss:
    """Return the loss that a package provides: a :class:`Loss`, or a function of outputs and targets, in all forms."""
    if isinstance(found, Loss):
        return found
    if isinstance(found, type) or not callable(found):
        raise TypeError(f"expected a function (outputs, targets) → losses (n,), or a Loss (found: {found!r:.60})")

    def loss(outputs: Tensor, y: Tensor, _: object) -> Tensor:
        losses: Tensor = found(outputs, y)
        if tuple(losses.shape[:1]) != tuple(y.shape[:1]):
            raise ConfigurationError(
                f"loss: '{reference}' returned losses of shape {tuple(losses.shape)} for {len(y)} examples; one each"
            )
        return losses

    return Loss(f"the function {reference}", dict.fromkeys((LOGITS, LOGIT, NUMBER, RISK, LOG_RATE), loss))


METRICS: Registry[type[Metric]] = Registry(
    "metrics",
    "a metric",
    {
        "accuracy": "florilegium.tasks.metrics.counts:Accuracy",
        "balanced-accuracy": "florilegium.tasks.metrics.counts:BalancedAccuracy",
        "f1": "florilegium.tasks.metrics.counts:F1",
        "f1-micro": "florilegium.tasks.metrics.counts:F1Micro",
        "auroc": "florilegium.tasks.metrics.ranks:Auroc",
        "average-precision": "florilegium.tasks.metrics.ranks:AveragePrecision",
        "brier": "florilegium.tasks.metrics.counts:Brier",
        "calibration-error": "florilegium.tasks.metrics.counts:CalibrationError",
        "perplexity": "florilegium.tasks.metrics.counts:Perplexity",
        "dice": "florilegium.tasks.metrics.counts:Dice",
        "iou": "florilegium.tasks.metrics.counts:IoU",
        "rmse": "florilegium.tasks.metrics.errors:RMSE",
        "mae": "florilegium.tasks.metrics.errors:MAE",
        "r2": "florilegium.tasks.metrics.errors:R2",
        "c-index": "florilegium.tasks.metrics.concordance:CIndex",
    },
    _read_metric,
)
"""All metrics by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""

LOSSES: Registry[Loss] = Registry(
    "loss",
    "a loss",
    {
        "cross-entropy": "florilegium.tasks.losses:CROSS_ENTROPY",
        "focal": "florilegium.tasks.losses:FOCAL",
        "label-smoothing": "florilegium.tasks.losses:SMOOTHED",
        "squared": "florilegium.tasks.losses:SQUARED",
        "absolute": "florilegium.tasks.losses:ABSOLUTE",
        "huber": "florilegium.tasks.losses:HUBER",
        "poisson": "florilegium.tasks.losses:POISSON",
        "cox": "florilegium.tasks.cox:COX",
        "cox-in-order": "florilegium.tasks.cox:COX_IN_ORDER",
    },
    _read_loss,
)
"""All losses by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""


class OfColumns:
    """Tasks with a target and an output for each column of targets."""

    targets: Targets

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the target of one example, (k,)."""
        return (len(self.targets.columns),)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input, (k,)."""
        return self.shape


class Measured(Task):
    """A task whose figures are metrics, by default ``own_metrics``, and whose loss has a name, by default ``own_loss``.

    Attributes:
        predicts: what it predicts, in a word of :mod:`florilegium.tasks.metric`.
        wants: what targets it needs, in a few words.
        example: targets that would do.
        form: the form of its outputs, in a word of :mod:`florilegium.tasks.losses`.
        own_loss: the name of its loss.
        own_metrics: the metrics of the task, the main one first.
    """

    predicts: ClassVar[str]
    wants: ClassVar[str]
    example: ClassVar[Targets]
    form: ClassVar[str]
    own_loss: ClassVar[str]
    own_metrics: ClassVar[tuple[str, ...]]
    has_positives: ClassVar[bool] = False
    """Whether classes are positive or negative (key ``positive``)."""

    @property
    @abstractmethod
    def metric_shape(self) -> Shape:
        """What metrics are told of the task."""

    @abstractmethod
    def seen(self, outputs: Tensor, y: Tensor) -> Seen:
        """Return what metrics are computed from, of outputs (n, *outputs) and targets (n, *shape)."""

    def check(self) -> None:
        """Check that the loss and the metrics are ones that the task has.

        Raises:
            ValueError: if not; names those that it has.
        """
        if self.choices.positive and not self.has_positives:
            raise ValueError("positive: only task = 'binary' has positive classes; leave it out")
        if self.choices.target_scale != "none" and self.form != NUMBER:
            raise ValueError("target-scale: only numbers to predict have a scale; leave it out")
        self._check_targets()
        if self.form not in LOSSES[self.choices.loss or self.own_loss].of:
            fitting = [one for one in LOSSES.own if self.form in LOSSES[one].of]
            raise ValueError(
                f"loss: '{self.choices.loss}' is not one of a task that {self.title}; it has {', '.join(fitting)}"
            )
        if self.choices.class_weights:
            check_class_weights(self)
        for name, metric in self.metrics.items():
            if self.predicts not in metric.fits:
                fitting = [one for one in METRICS.own if self.predicts in METRICS[one].fits]
                raise ValueError(
                    f"metrics: '{name}' is not one of a task that {self.title}; it has {', '.join(fitting)}"
                )

    def _check_targets(self) -> None:
        """Raise ``ValueError`` if the task cannot be learned from the dataset's targets."""

    # ---------------------------------------------------------------------------------------- losses

    @property
    def logits(self) -> bool:
        """Whether the loss takes outputs for logits; one of another package may take what it likes."""
        return self.form in (LOGITS, LOGIT) and (self.choices.loss or self.own_loss) in LOSSES.own

    @cached_property
    def _loss(self) -> Function:
        """The loss of single targets."""
        return LOSSES[self.choices.loss or self.own_loss].of[self.form]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, (n,): the mean over its targets."""
        found = self._loss(outputs, y, self.choices)
        return found if found.dim() == 1 else found.flatten(1).mean(dim=1)

    # --------------------------------------------------------------------------------------- metrics

    @cached_property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics by name, the main one first."""
        names = listed(self.choices.metrics) or self.own_metrics
        made = [METRICS[name](self.metric_shape) for name in names]
        if len({one.name for one in made}) < len(names):
            raise ValueError(f"metrics: '{self.choices.metrics}' names one figure twice")
        return {one.name: one for one in made}

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """The figures by name."""
        return {name: metric.figure for name, metric in self.metrics.items()}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the means over examples from which figures follow, each once."""
        return tuple(dict.fromkeys(name for metric in self.metrics.values() for name in metric.columns))

    @cached_property
    def sums(self) -> tuple[str, ...]:
        """Those of ``columns`` that are no figures, nor the loss."""
        return tuple(name for name in self.columns if name not in self.figures and name != LOSS)

    @property
    def averaged(self) -> frozenset[str]:
        """The figures that follow from no means over examples."""
        return frozenset(name for name, metric in self.metrics.items() if not metric.columns)

    @cached_property
    def _by_rows(self) -> bool:
        """Whether all figures follow from means over examples, so that clients can be evaluated together."""
        return self.per_example and all(type(metric).rows is not Metric.rows for metric in self.metrics.values())

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns of :meth:`rows`."""
        return (LOSS, *(name for name in self.columns if name != LOSS)) if self._by_rows else ()

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the loss of each example and what it adds to ``columns``, (n, m); None if a figure needs more."""
        from torch import stack

        if not self._by_rows:
            return None
        seen, found = self.seen(outputs, y), {LOSS: self.losses(outputs, y)}
        for metric in self.metrics.values():
            if any(name not in found for name in metric.columns):
                rows = metric.rows(seen)
                assert rows is not None
                found |= {name: row for name, row in zip(metric.columns, rows.unbind(1), strict=True) if name != LOSS}
        first = found[LOSS]
        return stack([found[name].to(first.dtype) for name in self.parts], dim=1)

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return loss, figures and ``sums``; NaN for what is undefined, and without examples."""
        if self._by_rows or not len(y):
            return super().measure(outputs, y)
        seen, means = self.seen(outputs, y), {LOSS: float(self.loss(outputs, y))}
        for metric in self.metrics.values():
            means |= metric.means(seen) if metric.columns else {}
        found = {n: one.value(means) if one.columns else one.whole(seen) for n, one in self.metrics.items()}
        return {name: (means | found)[name] for name in self.reported}

    def pool(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the figures that follow from means over all examples."""
        return {name: metric.value(means) for name, metric in self.metrics.items() if metric.columns}

    def constant(self, y: NDArray[Any]) -> float:
        """Return the main figure of the best constant prediction; NaN if it is not known, and without examples."""
        return self.metrics[self.main].constant(np.asarray(y)) if len(y) else math.nan
