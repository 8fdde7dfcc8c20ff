"""Objectives that several clients can minimise together, on batches with a leading axis of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from florilegium.models.stacked import Note, StackedNetwork
from florilegium.models.stacked_norms import Norms
from florilegium.tasks.task import Task


@dataclass(frozen=True)
class Batch:
    """One batch of each of n clients, all filled up to b examples.

    Attributes:
        x, y: inputs (n, b, …) and targets (n, b, …).
        weights: weight of each example in its client's mean, 0 for those that fill up, (n, b).
        sizes: number of examples of each client, (n,).
        least: a number that no size falls below.
        norms: what the network's batch norm needs, if it has any.
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    sizes: Tensor
    least: int
    norms: Norms | None = None


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


class StackedLoss(StackedObjective):
    """The mean loss of a network's outputs, examples weighted.

    Args:
        form: the network.
        task: gives the loss of each example.
    """

    def __init__(self, form: StackedNetwork, task: Task) -> None:
        self.form, self._task = form, task
        self.key = (form.signature, task.key) if task.per_example else None

    @staticmethod
    def together(objectives: Sequence[StackedLoss], parameters: Sequence[Tensor], batch: Batch) -> Tensor:
        """Return the loss of each client, (n,)."""
        return objectives[0].each(parameters, batch).sum(dim=1)

    def each(self, parameters: Sequence[Tensor], batch: Batch, notes: list[Note] | None = None) -> Tensor:
        """Return the loss of each example times its weight, (n, b); see :class:`StackedNetwork` for the notes."""
        outputs = self.form(parameters, batch.x, batch.norms, notes)
        return losses_together(self._task, outputs, batch.y) * batch.weights


def losses_together(task: Task, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each example of each client, (n, b), of outputs (n, b, …) for targets (n, b, …)."""
    return task.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(y.shape[:2])
