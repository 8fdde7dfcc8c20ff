"""HeteroFL and FedRolex, client side (Diao et al. 2021; Alam et al. 2022): local training of a narrow sub-network.

Receives a sub-network w of capacity r: ⌈r·C⌉ of the C channels of every layer. Builds a network of that width, trains
it as FedAvg does, and returns it. With the scaler, hidden layers multiply their outputs by 1/r. With the masked loss,
logits of classes that the client lacks are 0 in training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import measured
from florilegium.clients.core.training import evaluate
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.capacity import CapacityHyper
from florilegium.common.errors import RunError
from florilegium.models.parameters import Arrays, set_arrays
from florilegium.models.width import absorb, amplify, narrowed, shapes_at
from florilegium.tasks.task import CLASSES

FULL = "_full"
"""Figures of the whole network."""


class HeteroFLClient(BaseClient):
    """Trains and tests a sub-network of the width that it is told, at most that of its device."""

    hyper: CapacityHyper
    endings = (FULL,)

    @classmethod
    def needed(cls, hyper: CapacityHyper) -> frozenset[str]:
        """Return what the method needs of a task: classes, for the masked loss."""
        return frozenset({CLASSES} if hyper.masked_loss else ())

    @staticmethod
    def training(hyper: CapacityHyper) -> Training:
        """Return that DP-SGD sees all gradients, unless hidden layers are scaled or the loss is masked."""
        if hyper.scaler:
            return Training("the scaler changes gradients where DP-SGD does not see it (capacity.scaler = false)")
        return Training("the masked loss depends on which classes a client has" if hyper.masked_loss else "gradients")

    @phase
    def train(self, arrays: Arrays, *, capacity: float = 1.0) -> Answer:
        """Train the received sub-network on the client's data; return its arrays and the mean loss."""
        self._narrow(capacity)
        return super().train(arrays)

    @phase
    def test(self, arrays: Arrays, *, capacity: float = 1.0) -> Answer:
        """Evaluate the received sub-network, and the personal model made from it, as any client does."""
        self._narrow(capacity)
        answer = super().test(arrays)
        if self._factor(capacity) != 1:
            absorb(self.model, self._factor(capacity))  # so that a file of its arrays is the model
        return answer

    @phase
    def full(self, arrays: Arrays) -> Answer:
        """Evaluate the whole network on the client's test examples."""
        self._fits(1.0)
        set_arrays(self.model, arrays)
        found = evaluate(self.model, self.data.test, self.task)
        return Answer({}, len(self.data.test), {f"{name}{FULL}": found[name] for name in measured(self.task)})

    def local_training(self) -> float:
        """Train the received sub-network; with the masked loss, on the logits of the client's own classes."""
        if not self.hyper.masked_loss:
            return super().local_training()
        x, y = self.data.train.x, self.data.train.y
        known = y.unique()

        def objective(rows: Tensor) -> Tensor:
            logits = self.model(x[rows])
            masked = torch.zeros_like(logits)
            masked[:, known] = logits[:, known]
            return self.loss(masked, rows)

        return self.descend(objective=objective)

    def _narrow(self, capacity: float) -> None:
        """Replace the network by an empty one of this capacity."""
        self._fits(capacity)
        self.model = self.predictor = narrowed(self.model, shapes_at(self.model, capacity))
        if self._factor(capacity) != 1:
            amplify(self.model, self._factor(capacity))

    def _fits(self, capacity: float) -> None:
        """Raise :class:`RunError` if the client's device does not hold networks of this capacity."""
        if capacity > self.capacity:
            raise RunError(f"asked for a network of capacity {capacity:g}, this device holds {self.capacity:g}")

    def _factor(self, capacity: float) -> float:
        return 1 / capacity if self.hyper.scaler else 1.0
