"""FedDyn, client side (Acar et al. 2021, Algorithm 1): a local objective that adapts to where the client has been.

Receives the global model θ^{t−1}. The client minimises L_k(θ) − ⟨g_k, θ⟩ + α/2·‖θ − θ^{t−1}‖², and then updates its
memory of its gradient, g_k ← g_k − α(θ_k − θ^{t−1}), which it keeps; it starts at zero. Returns the minimiser θ_k.
"""

from __future__ import annotations

import numpy as np
import torch

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import Correction
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.federated import FedDynHyper
from florilegium.models.parameters import Arrays, trained


class FedDynClient(BaseClient):
    """Local SGD on a dynamically regularised objective."""

    training = Training("gradients", stacked=True)
    hyper: FedDynHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the received model on the regularised objective; update the memory g_k."""
        memory = self.state.load() or {name: np.zeros_like(arrays[name]) for name in trained(self.model)}  # g_k
        self._memory = memory
        answer = super().train(arrays)
        α = self.hyper.alpha
        self.state.save({name: g - α * (answer.arrays[name] - arrays[name]) for name, g in memory.items()})
        return answer

    def gradient_hook(self) -> Correction:
        """Return a hook that adds the regulariser's gradient α(θ − θ^{t−1}) − g_k."""
        named = [(name, parameter.detach()) for name, parameter in self.model.named_parameters()]
        frozen = torch.zeros(())
        shifts = [
            -torch.from_numpy(self._memory[name]).to(θ.device) if name in self._memory else frozen for name, θ in named
        ]
        return Correction(self.hyper.alpha, [θ.clone() for _, θ in named], shifts)
