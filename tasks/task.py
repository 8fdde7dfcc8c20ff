"""The contract of a task: what targets look like, what is minimised, and how well a model predicts.

A task is made for the targets of one dataset. Methods, evaluations, reports and exports ask it and know nothing else of
what is learned. Its declarations can be read without PyTorch; only what computes on tensors imports it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from florilegium.tasks.choices import DEFAULTS, Choices

if TYPE_CHECKING:
    from torch import Tensor

CLASSES, PER_EXAMPLE, VECTOR, NUMBERS, FAMILY, TIMES = "classes", "per-example", "vector", "numbers", "family", "times"
NEEDS: Mapping[str, str] = {
    CLASSES: "one class for each example",
    PER_EXAMPLE: "a loss of each example",
    VECTOR: "one vector of outputs for each input",
    NUMBERS: "one number for each example, with squared errors",
    FAMILY: "the likelihood of a generalised linear model",
    TIMES: "times to an event",
}
"""What a method may need of a task, in words."""

LOSS = "loss"
"""The first number of every measurement: the mean loss."""


@dataclass(frozen=True)
class Figure:
    """A number that says how well a model predicts, and in which range it lies.

    Attributes:
        low, high: the range of a client's number; replies with others are not used.
        higher: whether larger numbers are better.
        format: how it is written, a format specification such as ".4f".
        percent: whether it is a share, which tables and pictures show in per cent.
        chance: what a model without any use reaches, whatever the data; None: it depends on the data, or is unknown.
        pooled: end of the name of its value over all clients' examples together: ``accuracy_weighted``.
    """

    low: float = -math.inf
    high: float = math.inf
    higher: bool = True
    format: str = ".4f"
    percent: bool = False
    chance: float | None = None
    pooled: str = "pooled"


@dataclass(frozen=True)
class Targets:
    """What a dataset says of its targets.

    Attributes:
        columns: the names of the target columns; (): there is none, and all examples have class 0.
        classes: number of classes C; 0 if targets are numbers.
        labels: the words of the data for the classes, in their order; () if they have none.
        shape: shape of the targets of one row, if a column holds arrays of them: (length,), (height, width).
        inputs: shape of one input.
        codes: number of different tokens or characters, if inputs are such; else 0.
        padding: the code that fills up short inputs; -1: none does.
        responses: whether inputs are prompts with responses behind them, and stored targets where these begin.
    """

    columns: tuple[str, ...] = ()
    classes: int = 0
    labels: tuple[int | str, ...] = ()
    shape: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    codes: int = 0
    padding: int = -1
    responses: bool = False

    @property
    def numbers(self) -> bool:
        """Whether the columns hold numbers rather than labels."""
        return bool(self.columns) and not self.classes


class Task(ABC):
    """What is learned from targets y. n is a number of examples; ``shape`` and ``outputs`` are those of one of them.

    Args:
        targets: what the dataset says of its targets.
        choices: what the configuration says of loss, figures and positive classes.

    Attributes:
        title: what it is, in a few words.
        dtype: type of the targets: "int64" for codes of labels, "float32" for numbers.
        per_example: whether the loss of a batch is the mean of :meth:`losses`. Otherwise only :meth:`loss` is computed:
            no example can be private or weighted, and clients do not train together.
        least_loss: the smallest loss that a client can have.
        activated: what :meth:`activate` returns, in a word: the name of an ONNX model's output.
        decimals: how numbers are written in files of predictions, a format specification.
    """

    title: ClassVar[str]
    dtype: ClassVar[str] = "float32"
    per_example: ClassVar[bool] = True
    least_loss: ClassVar[float] = 0.0
    activated: ClassVar[str] = "predictions"
    decimals: ClassVar[str] = ".6g"

    def __init__(self, targets: Targets, choices: Choices = DEFAULTS) -> None:
        self.targets, self.choices = targets, choices
        self.check()

    # ---------------------------------------------------------------- declarations, free of PyTorch

    def check(self) -> None:
        """Check that the task can be learned from these targets.

        Raises:
            ValueError: if not; says what the task needs. By default, if a choice is made that nothing would follow.
        """
        if given := self.choices.given():
            name = next(iter(given)).replace("_", "-")
            raise ValueError(f"this task has a loss and figures of its own; {name} would have no effect: leave it out")

    @property
    def key(self) -> Hashable:
        """What tells tasks apart: those with equal keys compute the same."""
        return type(self), self.targets, self.choices

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the target of one example."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[int, ...]:
        """The shape of a network's output for one input; the first number is what networks are built with."""

    @property
    @abstractmethod
    def figures(self) -> Mapping[str, Figure]:
        """The figures by name; the first is the main one, which tuning, boards, early stops and pictures use."""

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of further means over examples that :meth:`measure` returns, since pooled figures follow from them."""
        return ()

    @property
    def averaged(self) -> frozenset[str]:
        """The figures of which none of all examples together follows from clients' (:meth:`pool` leaves them out)."""
        return frozenset()

    @property
    def main(self) -> str:
        """The name of the main figure."""
        return next(iter(self.figures))

    @property
    def provides(self) -> frozenset[str]:
        """What the task offers of ``NEEDS``."""
        follows = {PER_EXAMPLE: self.per_example, VECTOR: len(self.outputs) == 1, FAMILY: bool(self.family)}
        return self.offers | {name for name, given in follows.items() if given}

    @property
    def offers(self) -> frozenset[str]:
        """What it offers of ``NEEDS``, besides what follows from ``per_example`` and ``outputs``."""
        return frozenset()

    @property
    def family(self) -> str:
        """The distribution of a generalised linear model whose −log p is the loss: "linear" for normal errors,
        "logistic", "multinomial" or "poisson"; "": it is none."""
        return ""

    @property
    def guess(self) -> float | None:
        """The loss of a model that treats all outputs alike; None: it is not known."""
        return None

    def encode(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return a dataset's target columns as targets (n, *shape) of ``dtype``.

        Args:
            stored: int64 classes (n,), or float32 numbers, (n,) of one column and (n, k) of k columns.
        """
        shape = (len(stored), *self.shape)
        same = stored.dtype == self.dtype and stored.shape == shape
        return stored if same else np.asarray(stored, self.dtype).reshape(shape)

    def derived(self, x: NDArray[Any], stored: NDArray[Any]) -> NDArray[Any]:
        """Return the targets (n, *shape) of decoded inputs x (n, …) and stored targets; by default of the latter."""
        return self.encode(stored)

    def gap(self, y: NDArray[Any]) -> str:
        """Return why nothing can be learned from all clients' training targets y (n, *shape) together; "": it can."""
        return ""

    @property
    def logits(self) -> bool:
        """Whether the loss takes a network's outputs for logits, so that they need be no probabilities."""
        return False

    @property
    def num_strata(self) -> int:
        """The number of strata, by which rows are divided among clients and held out; 0: there are none."""
        return 0

    def strata(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return the stratum of each target (n, *shape), 0 to :attr:`num_strata` − 1; all 0 if there are none."""
        return np.zeros(len(y), np.int64)

    @property
    def strata_names(self) -> Sequence[int | str]:
        """What the strata are called, in their order; by default by their numbers."""
        return range(self.num_strata)

    def constant(self, y: NDArray[Any]) -> float:
        """Return the main figure of the best constant prediction for targets (n, *shape); NaN if it is not known."""
        return float("nan")

    def error(self, constant: float, examples: int) -> float:
        """Return the standard error of the main figure of a constant prediction on this many examples."""
        return 0.0

    constantly: ClassVar[str] = "a constant prediction"
    """What the constant prediction is, in words: "always predicting the mean"."""

    # ------------------------------------------------------------------------------- on tensors

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each example, (n,), of outputs (n, *outputs) for targets (n, *shape); differentiable."""

    def loss(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch, differentiable; with ``weights`` (n,), the mean of weights times losses."""
        losses = self.losses(outputs, y)
        return (losses if weights is None else weights * losses).mean()

    def total(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum of losses of a batch, differentiable; n times its loss, if examples have no losses."""
        return self.losses(outputs, y).sum() if self.per_example else self.loss(outputs, y) * len(y)

    def rows(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return what each example adds to the means of :attr:`parts`, (n, m); None: figures are no such means."""
        return None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns of :meth:`rows`, the loss first."""
        return ()

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Return the loss, the figures and the ``sums`` of one model; NaN for what is undefined, and without examples.

        Tasks without :meth:`rows` override this.
        """
        rows = self.rows(outputs, y) if len(y) else None
        if rows is None:
            return dict.fromkeys(self.reported, float("nan"))
        return self.from_means(rows.mean(dim=0).tolist())

    def from_means(self, means: list[float]) -> dict[str, float]:
        """Return what :meth:`measure` returns, from the means of :attr:`parts`."""
        known = dict(zip(self.parts, means, strict=True))
        known |= self.pool(known)
        return {name: known[name] for name in self.reported}

    @property
    def reported(self) -> tuple[str, ...]:
        """The names of the numbers that :meth:`measure` returns, in order: the loss, figures, sums."""
        return (LOSS, *self.figures, *self.sums)

    def pool(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of all examples of several clients together, those that follow exactly.

        Args:
            means: the mean of each of :attr:`reported` over all examples: of clients' numbers, weighted by their
                numbers of examples. ``sums`` are such means, so that their pooled values are exact.
        """
        return {}

    def activate(self, outputs: Tensor) -> Tensor:
        """Return outputs (n, *outputs) as what users read: probabilities, or numbers in the target's unit."""
        return outputs

    def predictions_at(self, activated: NDArray[Any], y: NDArray[Any]) -> dict[str, list[Any]]:
        """Return :meth:`predictions` of what has targets alone: ``y``, (n, *shape), are targets or placeholders."""
        return self.predictions(activated)

    @abstractmethod
    def predictions(self, activated: NDArray[Any]) -> dict[str, list[Any]]:
        """Return columns of predictions, n entries each, from activated outputs (n, *outputs)."""
