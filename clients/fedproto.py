"""FedProto, client side (Tan et al. 2022, Algorithm 1): personal models whose features agree on class prototypes.

A prototype C_i^(j) is the mean of client i's features of class j; features f(x) are the inputs of the last block.
Receives the weighted sums of all clients' prototypes, hence the global prototypes C̄^(j). Minimises
ℓ + λ·‖f(x) − C̄^(y)‖²/d (equation 7), then returns its own prototypes (equation 3), times their weights. Predicts the
class of the nearest global prototype. The model never leaves the client.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.clients.core.training import Objective, features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.classwise import ClasswiseClient, mean_vectors, sum_by_class
from florilegium.clients.hyper.classwise import FedProtoHyper
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays
from florilegium.tasks.task import CLASSES

NEVER = -1e9
"""Score of a class without a prototype, below all others as long as features are shorter than 10⁴."""


class FedProtoClient(ClasswiseClient):
    """Pulls the features of each class towards the class's global prototype."""

    training = Training()
    needs = frozenset({CLASSES})

    needs_blocks = True
    hyper: FedProtoHyper
    model: nn.Sequential

    def objective(self) -> Objective:
        """Return equation 7 for a batch; classes without a global prototype are not pulled."""
        body, classifier = body_and_classifier(self.model)
        x, y = self.data.train.x, self.data.train.y
        prototypes, known = mean_vectors(self.sums, self.weights), (self.weights > 0).to(self.sums)
        λ = self.hyper.regularization if known.any() else 0.0
        self._seen = torch.zeros_like(self.sums), torch.zeros_like(self.weights)
        collects = self.hyper.collect == "during"

        def objective(rows: Tensor) -> Tensor:
            z, labels = body(x[rows]), y[rows]
            if collects:
                self._seen[0].index_add_(0, labels, z.detach().to(self.sums))
                self._seen[1].add_(torch.bincount(labels, minlength=len(self.weights)))
            loss = self.loss(classifier(z), rows)
            if not λ:
                return loss
            distances = (z - prototypes[labels]).square().mean(dim=1)
            return loss + λ * (known[labels] * distances).mean()

        return objective

    def vectors(self) -> Arrays:
        """Return the client's prototypes: under its trained model, or the mean of the features that training saw."""
        return self.weighted(*(self._seen if self.hyper.collect == "during" else self._own_sums()))

    def personalise(self) -> bool:
        """Fine-tune, then let the classifier choose the nearest prototype, unless no client has sent any."""
        tuned = super().personalise()
        if self.hyper.predict == "classifier" or not (self.weights > 0).any():
            return tuned
        sums, weights = self.sums, self.weights
        if self.data.labeled:  # a class that no client has sent yet is represented by the client's own prototype
            own, counts = self._own_sums()
            missing = weights == 0
            sums, weights = torch.where(missing[:, None], own, sums), torch.where(missing, counts, weights)
        choose_nearest(body_and_classifier(self.model)[1], mean_vectors(sums, weights), weights > 0)
        return True

    def _own_sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums of the features of each class (C, d), and the numbers of examples (C,)."""
        z = features(body_and_classifier(self.model)[0], self.data.train)
        return sum_by_class(z, self.data.train.y, len(self.weights))


@torch.no_grad()
def choose_nearest(classifier: nn.Module, prototypes: Tensor, known: Tensor) -> None:
    """Set a dense layer's parameters so that it chooses the nearest of the prototypes (C, d).

    −‖z − c‖² differs from 2c·z − ‖c‖², which is linear in z, only by a term that is the same for all classes. Classes
    that are not ``known`` (C,) are never chosen.
    """
    weight, bias = classifier.parameters()
    weight.copy_(2 * prototypes)
    bias.copy_(torch.where(known, -prototypes.square().sum(dim=1), NEVER))
