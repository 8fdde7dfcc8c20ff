"""One vector per class, client side: personal models, regularised by what all clients together know of each class.

Receives for each class the sum of the clients' vectors (mean features, mean logits), each times its weight, and the sum
of the weights. The client trains its own model, which never leaves it, and returns its own vectors times their weights,
and the weights. The weight of client i for class c is its number of examples of the class (``weighting = "examples"``),
or 1 if it has any (``"uniform"``).
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Objective, evaluate
from florilegium.clients.local import LocalClient
from florilegium.models.parameters import Arrays, set_arrays

SUMS, WEIGHTS = "class.sums", "class.weights"
"""Names of the arrays: the weighted sums of vectors (C, d), and the weights (C,)."""


class ClasswiseClient(LocalClient):
    """Trains its own model with a regulariser; shares a vector for each of its classes.

    Attributes:
        sums: received sums of vectors (C, d).
        weights: received weights (C,); 0 for a class that no client has sent.
    """

    sums: Tensor
    weights: Tensor

    # ------------------------------------------------------------------------- what a method provides

    @abstractmethod
    def objective(self) -> Objective:
        """Return the loss of a batch: the task's loss and the method's regulariser."""

    @abstractmethod
    def vectors(self) -> Arrays:
        """Return what the client adds to the sums, after its training: the result of :meth:`weighted`."""

    # ----------------------------------------------------------------------------------------- phases

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the client's own model further; return its vectors and their weights."""
        self.take(arrays)
        answer = super().train(arrays)
        return Answer(self.vectors(), answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate what the client predicts with; nothing that it received is a model."""
        self.take(arrays)
        set_arrays(self.model, self.own())
        self.personalise()
        return Answer({}, len(self.data.test), evaluate(self.predictor, self.data.test, self.task))

    def local_training(self) -> float:
        """Train the client's own model, already in ``self.model``, with the regulariser; return the mean loss."""
        return self.descend(objective=self.objective())

    def personalise(self) -> bool:
        """Train a copy of the client's own model for ``finetune-epochs``, as in a round; θ₀ if it has none yet."""
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        with self.finetuning():
            self.descend(epochs=epochs, objective=self.objective())
        return True

    # ------------------------------------------------------------------------------------------ tools

    def take(self, arrays: Arrays) -> None:
        """Keep the received sums and weights.

        Raises:
            RunError: if there are none.
        """
        self.expect_own_strategy({SUMS, WEIGHTS} <= arrays.keys())
        device = self.data.train.y.device
        self.sums, self.weights = (torch.from_numpy(arrays[name]).to(device) for name in (SUMS, WEIGHTS))

    def weighted(self, sums: Tensor, counts: Tensor) -> Arrays:
        """Return the client's mean vectors times their weights, and the weights.

        Args:
            sums: sums of vectors by class (C, d).
            counts: numbers of vectors summed (C,); 0 for a class that the client lacks.
        """
        if self.settings.weighting == "uniform":
            weights = (counts > 0).to(sums)
        else:
            weights = torch.bincount(self.data.train.y, minlength=len(sums)) * (counts > 0).to(sums)
        means = mean_vectors(sums, counts)
        return {SUMS: (means * weights[:, None]).cpu().numpy(), WEIGHTS: weights.cpu().numpy()}


def mean_vectors(sums: Tensor, weights: Tensor) -> Tensor:
    """Return the mean vectors (C, d) of weighted sums (C, d) and the weights (C,); zeros for a class of weight 0."""
    some = weights[:, None] > 0
    return torch.where(some, sums / torch.where(some, weights[:, None], 1), 0)


def sum_by_class(vectors: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the sum (C, d) and the number (C,) of the vectors (n, d) of each class y (n,)."""
    return vectors.new_zeros(classes, vectors.shape[1]).index_add_(0, y, vectors), torch.bincount(y, minlength=classes)
