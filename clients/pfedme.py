"""pFedMe, client side (Dinh et al. 2020, Algorithm 1): a local model w_i, and a personal model θ_i kept near it.

For each batch: θ̃ ≈ argmin_θ f(θ) + λ/2·‖θ − w‖², by K steps from w, then w ← w − ηλ(w − θ̃). Receives and returns w.
The last θ̃ is the client's personal model; a client without one trains it from w for ``finetune-epochs`` before a test.

Strategy: FedAvg (``strategies/fedavg.py``): w ← (1 − β)w + β·mean(w_i) is its step with β = ``server-learning-rate``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import GradientHook, Group, gradient_of, pull_towards
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.personal import PFedMeHyper
from florilegium.models.parameters import Arrays, get_arrays, set_arrays, trained


class PFedMeClient(BaseClient):
    """Trains two models: one for the federation, and one near it for the client."""

    training = Training("it has losses and steps of its own")
    uses_finetuning = "always"
    hyper: PFedMeHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train w with the steps of pFedMe; save the last θ̃ as the personal model."""
        answer = super().train(arrays)
        with torch.no_grad():
            for parameter, own in zip(trained(self.model).values(), self._θ, strict=True):
                parameter.copy_(own)
        self.state.save(get_arrays(self.model))
        return answer

    def gradient_hook(self) -> GradientHook:
        """Return a hook that replaces ∇f(w) by λ(w − θ̃), the gradient of the Moreau envelope."""
        λ, rate = self.hyper.regularization, self.hyper.personal_learning_rate

        def hook(model: nn.Module, rows: Tensor) -> None:
            parameters = list(trained(model).values())
            w = [parameter.detach().clone() for parameter in parameters]
            x = self.data.train.x[rows]
            for step in range(self.hyper.personal_steps):
                if step > 0:  # the gradient at w has already been computed
                    for parameter in parameters:
                        parameter.grad = None
                    self.loss(model(x), rows).backward()
                with torch.no_grad():
                    for parameter, own in zip(parameters, w, strict=True):
                        parameter.sub_(gradient_of(parameter) + λ * (parameter - own), alpha=rate)
            self._θ = [parameter.detach().clone() for parameter in parameters]
            with torch.no_grad():
                for parameter, own, personal in zip(parameters, w, self._θ, strict=True):
                    parameter.copy_(own)
                    parameter.grad = λ * (own - personal)

        return hook

    def personalise(self) -> bool:
        """Replace the received model by the personal model θ_i; train one first if the client has none."""
        if (own := self.state.load()) is not None:
            set_arrays(self.model, own)
            return True
        epochs, parameters = self.settings.finetune_epochs, list(self.model.parameters())
        if not epochs or not self.data.labeled:
            return False
        pull = pull_towards([parameter.detach().clone() for parameter in parameters], self.hyper.regularization)
        groups = [Group(parameters, self.hyper.personal_learning_rate, decays=False)]
        with self.finetuning():
            self.descend(epochs=epochs, groups=groups, gradient_hook=pull)
        return True
