"""FedDistill, client side: federated distillation, FD (Jeong et al. 2018, Algorithm 1).

Receives the weighted sums of the clients' mean logits for each class. F̂^(c), the mean of the *other* clients' logits,
follows by subtracting what the client itself has added. Minimises ℓ + γ·φ(F(x), F̂^(y)), where φ is the cross-entropy
between the softmax of both; while it trains, the client collects its own mean logits F̄^(c), which it returns. The model
never leaves the client.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from florilegium.clients.core.training import Objective
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.classwise import SUMS, WEIGHTS, ClasswiseClient, mean_vectors, sum_by_class
from florilegium.clients.hyper.classwise import FedDistillHyper
from florilegium.models.parameters import Arrays
from florilegium.tasks.task import CLASSES

INCLUDED = "class.included"
"""Array (C,): the round in which the client has added to the sums that it receives, 0 for classes where it has not."""


class FedDistillClient(ClasswiseClient):
    """Distils the other clients' mean logits of each class into its own model."""

    training = Training()
    needs = frozenset({CLASSES})

    hyper: FedDistillHyper

    def take(self, arrays: Arrays) -> None:
        """Keep the received sums and weights, without the client's own part of them."""
        super().take(arrays)
        self.expect_own_strategy(INCLUDED in arrays)
        own = self.state.load("logits")
        if own is None:
            return
        # The server may have accepted earlier logits than the last ones, if a reply was lost; those are not kept.
        mine = torch.from_numpy(arrays[INCLUDED] == own["round"]).to(self.sums)
        self.sums = self.sums - mine[:, None] * torch.from_numpy(own[SUMS]).to(self.sums)
        self.weights = self.weights - mine * torch.from_numpy(own[WEIGHTS]).to(self.weights)

    def objective(self) -> Objective:
        """Return the loss of a batch, and collect its logits; classes that no other client has are not regularised."""
        x, y, classes = self.data.train.x, self.data.train.y, len(self.weights)
        targets, known = mean_vectors(self.sums, self.weights), (self.weights > 0).to(self.sums)
        probabilities = targets.softmax(dim=1)
        γ = self.hyper.regularization if known.any() else 0.0
        self._collected = torch.zeros_like(self.sums)
        self._counts = torch.zeros(classes, dtype=torch.int64, device=y.device)

        def objective(rows: Tensor) -> Tensor:
            logits, labels = self.model(x[rows]), y[rows]
            sums, counts = sum_by_class(logits.detach(), labels, classes)
            self._collected += sums
            self._counts += counts
            loss = self.loss(logits, rows)
            if not γ:
                return loss
            if self.hyper.distance == "squared":
                distances = (logits - targets[labels]).square().mean(dim=1)
            else:
                distances = cross_entropy(logits, probabilities[labels], reduction="none")
            return loss + γ * (known[labels] * distances).mean()

        return objective

    def vectors(self) -> Arrays:
        """Return the mean of the logits collected in training; keep them, to know the client's own part of the sums."""
        own = self.weighted(self._collected, self._counts)
        self.state.save(own | {"round": np.array([self.round])}, "logits")
        return own
