"""MOON, client side (Li et al. 2021, Algorithm 1): a contrastive loss on the representations of models.

Receives the global model. The client minimises the cross-entropy plus μ times the model-contrastive loss
−log(e^{s_g} / (e^{s_g} + e^{s_p})), where s_g and s_p are the cosine similarities, divided by τ, of an example's
representation z by the model in training with z_glob, that by the received model, and with z_prev, that by the model
that the client trained last, which it keeps. Representations are the inputs of the network's last block.

Strategy: FedAvg (``strategies/fedavg.py``).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Objective, fixed_features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.federated import MoonHyper
from florilegium.models.blocks import block_names, body_and_classifier, of_blocks
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, whole


class MoonClient(BaseClient):
    """Local SGD with a model-contrastive loss."""

    training = Training("it has a loss of its own")
    needs_blocks = True
    hyper: MoonHyper
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received model, and keep the body of the trained one."""
        answer = super().train(arrays)
        if self.hyper.mu:
            self.state.save(of_blocks(answer.arrays, block_names(whole(self.model))[:-1]))
        return answer

    def local_training(self) -> float:
        """Train with the model-contrastive loss, if the client has a model that it trained before."""
        previous = self.state.load() if self.hyper.mu else None
        return self.descend(objective=None if previous is None else self._objective(previous))

    def _objective(self, previous: Arrays) -> Objective:
        """Return the loss of a batch; ``previous``: arrays of the body that the client trained last."""
        train, received = self.data.train, get_arrays(self.model)
        body, classifier = body_and_classifier(self.model)
        glob = fixed_features(body, train)
        set_arrays(self.model, previous)
        prev = fixed_features(body, train)
        set_arrays(self.model, received)

        def objective(rows: Tensor) -> Tensor:
            z = body(train.x[rows])
            towards, away = (cosine_similarity(z.flatten(1), other(rows)) for other in (glob, prev))
            contrast = softplus((away - towards) / self.hyper.temperature).mean()
            return self.loss(classifier(z), rows) + self.hyper.mu * contrast

        return objective
