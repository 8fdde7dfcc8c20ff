"""Objectives that several clients can minimise together, on batches with a leading axis of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from florilegium.models.stacked import StackedNetwork


@dataclass(frozen=True)
class Batch:
    """One batch of each of n clients, all filled up to b examples.

    Attributes:
        x, y: inputs (n, b, …) and classes (n, b).
        weights: weight of each example in its client's mean, 0 for those that fill up, (n, b).
        sizes: number of examples of each client, (n,).
        least: a number that no size falls below.
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    sizes: Tensor
    least: int


class StackedObjective(ABC):
    """An objective in the form for several clients.

    A method's own objective that inherits from this class is minimised together (:func:`training.train` calls it for
    one client, this form is called for several).

    Attributes:
        key: objectives with equal keys can be computed together; None: each is minimised by its client alone.
    """

    key: Hashable

    @staticmethod
    @abstractmethod
    def together(objectives: Sequence[Any], parameters: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the loss of each client, (n,).

        Args:
            objectives: those of the n clients.
            parameters: those of the trained network, in its order, each (n, *shape).
            batch: a batch of each client.
        """


class StackedCrossEntropy(StackedObjective):
    """The mean cross-entropy of a network's outputs, examples weighted."""

    def __init__(self, form: StackedNetwork) -> None:
        self._form, self.key = form, form.signature

    @staticmethod
    def together(objectives: Sequence[StackedCrossEntropy], parameters: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the loss of each client, (n,)."""
        outputs = objectives[0]._form(parameters, batch.x)
        losses = cross_entropy(outputs.flatten(0, 1), batch.y.flatten(), reduction="none").view_as(batch.y)
        return (losses * batch.weights).sum(dim=1)
