"""SCAFFOLD, client side (Karimireddy et al. 2020, Algorithm 1): SGD whose steps are corrected by control variates.

Receives the global model x and, beside it, the server's control variate c. The client takes K steps
y ← y − η(g(y) + c − c_i), then updates its own control variate c_i, which it keeps: c_i⁺ = ∇f_i(x) (option I), or
c_i⁺ = c_i − c + (x − y)/(Kη) (option II). Returns y and c + c_i⁺ − c_i, so that the summed updates are those of the
paper.
"""

from __future__ import annotations

import numpy as np
import torch

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Correction, mean_gradient
from florilegium.clients.core.training_facts import Training
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.federated import ScaffoldHyper
from florilegium.models.parameters import Arrays, get_arrays, trained


class ScaffoldClient(BaseClient):
    """Local SGD whose steps are corrected towards the mean gradient of all clients."""

    training = Training(stacked=True)
    hyper: ScaffoldHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train with corrected gradients; return the model y and c + c_i⁺ − c_i."""
        parameters, device = trained(self.model), self.data.train.y.device
        received = self.receive(arrays)
        c = {name: torch.from_numpy(received[name]).to(device) for name in parameters}
        kept = self.state.load() or {name: np.zeros_like(received[name]) for name in parameters}
        own = {name: torch.from_numpy(kept[name]).to(device) for name in parameters}  # c_i
        x = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        gradients = (
            mean_gradient(self.model, self.data.train, [*parameters.values()], self.task)
            if self.hyper.option == 1
            else []
        )
        shifts = [c[n] - own[n] if n in parameters else torch.zeros(()) for n, _ in self.model.named_parameters()]
        correction = Correction(shifts=shifts)
        loss = self.descend(gradient_hook=correction)
        if self.hyper.option == 1:
            new = dict(zip(parameters, gradients, strict=True))
        else:
            η = self.settings.learning_rate * self.decay()
            new = {n: own[n] - c[n] + (x[n] - y.detach()) / (correction.steps * η) for n, y in parameters.items()}
        self.state.save({name: tensor.cpu().numpy() for name, tensor in new.items()})
        control = {BESIDE + name: (c[name] + new[name] - own[name]).cpu().numpy() for name in parameters}
        return Answer(get_arrays(self.model) | control, len(self.data.train), {"loss": loss})
