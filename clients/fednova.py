"""FedNova, client side (Wang et al. 2020): the update of a client counts the same however many steps it took.

Receives the global model x and the number of steps τ_eff that the round counts for. τ_i local steps with learning rate
η change x by −η·Σ_k a_{i,k}·g_k, a weighted sum of stochastic gradients; ‖a_i‖₁ is the sum of the weights. Returns
x + τ_eff/‖a_i‖₁·(y − x), where y is the trained model, so that FedAvg's mean update is τ_eff times that of the
normalised ones, as in equation 8.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.settings import SharedSettings
from florilegium.clients.core.training import GradientHook, pull_towards
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.federated import FedNovaHyper
from florilegium.models.parameters import Arrays, is_statistic


def normaliser(settings: SharedSettings, hyper: FedNovaHyper, examples: int, server_round: int) -> float:
    """Return ‖a_i‖₁ of a client with this many training examples, for its local training in a round."""
    η = settings.learning_rate * settings.decay(server_round)
    return sum_of_weights(settings.steps(examples), settings.momentum, η * hyper.mu)


@lru_cache(maxsize=4096)
def sum_of_weights(steps: int, momentum: float, pull: float) -> float:
    """Return ‖a‖₁, the sum of the weights with which gradients enter a client's update.

    That is u = (x − y)/η if all gradients are 1: v ← ρ·v + 1 − ημ·u; u ← u + v. Without momentum and proximal term it
    is the number of steps.

    Args:
        steps: number of local steps τ.
        momentum: ρ, momentum of local SGD.
        pull: ημ, learning rate times weight of the proximal term, below 1.
    """
    u = v = 0.0
    for _ in range(steps):
        v = momentum * v + 1 - pull * u
        u += v
    return u


class FedNovaClient(BaseClient):
    """Local SGD whose update is scaled to τ_eff steps."""

    training = Training("gradients", stacked=True)
    hyper: FedNovaHyper

    @phase
    def train(self, arrays: Arrays, *, steps: float | None = None) -> Answer:
        """Train the received model, and scale its update to ``steps`` = τ_eff steps.

        Raises:
            RunError: if no τ_eff was sent, as by stock strategies.
        """
        self.expect_own_strategy(steps is not None)
        answer = super().train(arrays)
        norm = normaliser(self.settings, self.hyper, len(self.data.train), self.round)
        scale = (steps or 0.0) / norm if norm else 1.0  # a client without examples has not moved
        for name, y in answer.arrays.items():
            if not is_statistic(name):  # in double precision: with a scale of 1 the result is y to the last bit
                x = arrays[name].astype(np.float64)
                answer.arrays[name] = (x + scale * (y - x)).astype(y.dtype)
        return answer

    def gradient_hook(self) -> GradientHook | None:
        """Return a hook that adds the proximal term's gradient μ·(w − x), or None if μ = 0."""
        if not self.hyper.mu:
            return None
        return pull_towards([p.detach().clone() for p in self.model.parameters()], self.hyper.mu)
