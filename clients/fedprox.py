"""FedProx, client side (Li et al. 2020, Algorithm 2 and equation 2).

Receives the global model wᵗ and the scalar ``mu`` = μ; returns an approximate minimiser of
h(w) = F_k(w) + μ/2·‖w − wᵗ‖². With μ = 0 this is FedAvg.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import GradientHook, pull_towards
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.federated import FedProxHyper
from florilegium.models.parameters import Arrays


class FedProxClient(BaseClient):
    """Local SGD with a proximal term that keeps it near the global model."""

    training = Training("gradients", stacked=True)
    hyper: FedProxHyper
    _mu = 0.0

    @phase
    def train(self, arrays: Arrays, *, mu: float | None = None) -> Answer:
        """Train on h(w); without ``mu``, as from stock strategies, the configured μ is used."""
        self._mu = self.hyper.mu if mu is None else mu
        return super().train(arrays)

    def gradient_hook(self) -> GradientHook | None:
        """Return a hook that adds the proximal term's gradient μ·(w − wᵗ), or None if μ = 0."""
        if self._mu == 0:
            return None
        return pull_towards([p.detach().clone() for p in self.model.parameters()], self._mu)  # wᵗ, μ
