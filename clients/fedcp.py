"""FedCP, client side (Zhang et al. 2023, Algorithm 1): a policy separates each example's features for two heads.

Receives the body W^fe, the shared head W^hd and, beside them, the policy network Θ. With h = W^fe(x), v the sum of the
personal head's weights over classes, and r = Θ(v/‖v‖ ⊙ h), the client predicts W_i^hd(r ⊙ h) + W^hd((1 − r) ⊙ h). It
trains body, Θ and its personal head W_i^hd on the cross-entropy plus λ·MMD(h, features of the received body), keeps
W_i^hd, and returns the body, Θ, and (W_i^hd + W^hd)/2 as the head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import fixed_features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import of_network
from florilegium.clients.families.accompanied import beside
from florilegium.clients.hyper.conditional import FedCPHyper
from florilegium.common.memo import remembered
from florilegium.models.blocks import block_names, of_blocks
from florilegium.models.conditioned import Policy, Separated
from florilegium.models.discrepancy import discrepancy
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, whole
from florilegium.tasks.task import VECTOR

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)
"""Of the discrepancy's Gaussian kernels, as in the authors' code."""


class FedCPClient(BaseClient):
    """Trains a body and a policy for the federation, and a head of its own."""

    training = Training("its losses are of whole batches")
    needs = frozenset({VECTOR})

    needs_blocks = True
    hyper: FedCPHyper
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train body, policy and personal head; return body, policy, and the mean of both heads."""
        model = self._separated(self.receive(arrays))
        loss = self._fit(model)
        trained = get_arrays(self.model)
        own = of_blocks(trained, block_names(whole(self.model))[-1:])
        self.state.save(own)
        merged = {name: (head + arrays[name]) / 2 for name, head in own.items()}
        return Answer(trained | merged | beside(model.policy), len(self.data.train), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the received body with the shared head alone, and the client's model with both heads."""
        self._policy_arrays = self.receive(arrays)
        return super().test(of_network(arrays))

    def personalise(self) -> bool:
        """Predict with both heads; fine-tune, if asked to, as in a round."""
        self.predictor = model = self._separated(self._policy_arrays)
        epochs = self.settings.finetune_epochs
        if epochs and self.data.labeled:
            with self.finetuning():
                self._fit(model, epochs=epochs)
        return True

    # --------------------------------------------------------------------------------------- details

    def _separated(self, policy: Arrays) -> Separated:
        """Return the client's model, of the received network in ``self.model``, the policy and the client's own head.

        A client that has not trained yet begins with the received head.
        """
        d, device = policy["layers.0.weight"].shape[1], self.data.train.y.device
        module = _policy(d).to(device)
        set_arrays(module, policy)
        model = Separated(self.model, module, torch.zeros(d, device=device))
        set_arrays(self.model, self.state.load() or {})
        model.follow()
        return model

    def _fit(self, model: Separated, *, epochs: int | None = None) -> float:
        """Train the client's model on its objective; return the mean loss."""
        x, λ = self.data.train.x, self.hyper.discrepancy
        received = fixed_features(model.body, self.data.train)
        draws = self.generator("policy")

        def objective(rows: Tensor) -> Tensor:
            h = model.features(x[rows])
            noise = torch.rand(h.shape, generator=draws).logit(1e-6).to(h) if self.hyper.gumbel else None
            return self.loss(model.classify(h, noise), rows) + λ * discrepancy(h, received(rows), BANDWIDTHS)

        return self.descend(model=model, epochs=epochs, objective=objective)


@remembered(2)
def _policy(features: int) -> Policy:
    """Return the policy network that all clients of the process share; every client overwrites its contents."""
    return Policy(features)
