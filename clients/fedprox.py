"""FedProx, client side (Li et al. 2020, Algorithm 2 and equation 2).

Received: the global model wᵗ and the scalar ``mu`` = μ. Answered: an approximate minimiser of
h(w) = F_k(w) + μ/2·‖w − wᵗ‖². With μ = 0 this is FedAvg.
"""

from __future__ import annotations

from typing import Any

from clients.base import BaseClient
from clients.hyper import FedProxHyper
from clients.training import GradientHook, pull_towards
from clients.wire import Config


class FedProxClient(BaseClient):
    """Local SGD that is pulled back to the global model."""

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Nothing does."""
        return ""

    hyper: FedProxHyper

    def gradient_hook(self, config: Config) -> GradientHook | None:
        """Add the proximal term's gradient μ·(w − wᵗ)."""
        mu = float(config.get("mu", self.hyper.mu))  # stock strategies send no μ: the configured one counts
        if mu == 0:
            return None
        return pull_towards([p.detach().clone() for p in self.model.parameters()], mu)  # wᵗ, μ
