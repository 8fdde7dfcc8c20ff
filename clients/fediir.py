"""FedIIR, client side (Guo et al. 2023): the classifier's gradient is regularised towards the clients' mean gradient.

The classifier is the network's last block. Phase ``gradient`` receives the model, and returns the gradient of the mean
loss with respect to the classifier's parameters. Phase ``train`` receives the model and, beside it, the running mean ḡ
of these gradients; the client minimises ℓ + γ‖∇ℓ − ḡ‖² and returns the model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import gradients, mean_gradient
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.federated import FedIIRHyper
from florilegium.models.blocks import last_blocks, of_blocks
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, trained, whole


class FedIIRClient(BaseClient):
    """Trains with a regulariser on the classifier's gradient."""

    training = Training()
    needs_blocks = True
    hyper: FedIIRHyper

    @phase
    def gradient(self, arrays: Arrays) -> Answer:
        """Return the classifier's gradient at the received model; zeros for what has none."""
        set_arrays(self.model, arrays)
        classifier = self._classifier()
        slopes = mean_gradient(self.model, self.data.train, [*classifier.values()], self.task)
        sent = of_blocks(arrays, last_blocks(whole(self.model), 1, "fediir"))
        ḡ = {BESIDE + name: np.zeros_like(array) for name, array in sent.items()}
        ḡ |= {BESIDE + name: g.cpu().numpy() for name, g in zip(classifier, slopes, strict=True)}
        return Answer(ḡ, len(self.data.train))

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received model with the regulariser."""
        received, classifier = self.receive(arrays), self._classifier()
        x, y = self.data.train.x, self.data.train.y
        ḡ = [torch.from_numpy(received[name]).to(y.device) for name in classifier]

        def objective(rows: Tensor) -> Tensor:
            loss = self.loss(self.model(x[rows]), rows)
            slopes = gradients(loss, [*classifier.values()], differentiable=True)
            distance = torch.stack([(g - m).square().sum() for g, m in zip(slopes, ḡ, strict=True)]).sum()
            return loss + self.hyper.penalty * distance

        loss = self.descend(objective=objective if self.hyper.penalty else None)
        return Answer(get_arrays(self.model), len(y), {"loss": loss})

    def _classifier(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the last block by their names in the network."""
        named = trained(self.model)
        return {name: named[name] for name in of_blocks(named, last_blocks(whole(self.model), 1, "fediir"))}
