"""FedSR, client side (Nguyen et al. 2022): two regularisers keep representations simple.

Receives and returns the model and, beside it, the parameters of the representation (of its standard deviation σ, and
the classes' Gaussians). All blocks but the last compute μ(x); in training the last block classifies
z ~ N(μ(x), σ(x)²). Minimises ℓ + α_L2R · ℓ^L2R + α_CMI · E KL(p(z|x) ‖ r(z|y)), where ℓ^L2R is E‖z‖ or E‖z‖². Tests use
z = μ(x).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.accompanied import beside
from florilegium.clients.hyper.federated import FedSRHyper
from florilegium.common.memo import remembered
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.models.representation import Representation
from florilegium.tasks.task import CLASSES


class FedSRClient(BaseClient):
    """Trains with regularisers on the representation."""

    training = Training("it has losses and steps of its own")
    needs = frozenset({CLASSES})

    needs_blocks = True
    hyper: FedSRHyper
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the model and the representation's own parameters."""
        own = self.receive(arrays)
        x, y = self.data.train.x, self.data.train.y
        representation = _representation(*own["class_means"].shape).to(y.device)
        set_arrays(representation, own)
        noise = self.generator("noise")
        body, classifier = body_and_classifier(self.model)

        def objective(rows: Tensor) -> Tensor:
            z = body(x[rows])
            penalty = torch.zeros((), device=z.device)
            if self.hyper.information_penalty:
                p = representation(z)
                penalty = self.hyper.information_penalty * representation.information(p, y[rows])
                z = p.loc + p.scale * torch.randn(z.shape, generator=noise).to(z)
            norms = z.square().sum(dim=1) if self.hyper.norm == "squared" else torch.linalg.vector_norm(z, dim=1)
            return self.loss(classifier(z), rows) + penalty + self.hyper.norm_penalty * norms.mean()

        both = nn.ModuleList([self.model, representation])
        loss = self.descend(model=both, objective=objective)
        return Answer(get_arrays(self.model) | beside(representation), len(y), {"loss": loss})


@remembered(2)
def _representation(classes: int, features: int) -> Representation:
    """Return the representation module that all clients of the process share; every client overwrites its contents."""
    return Representation(features, classes)
