"""Ditto, client side (Li et al. 2021, Algorithm 1): a personal model that is regularised towards the global model.

Receives the global model wᵗ; returns it after local training, as in FedAvg. The personal model v_k is kept in the
client's state and trained further on F_k(v) + λ/2·‖v − wᵗ‖²; it starts at wᵗ. With λ = 0 this is local training.

Strategy: FedAvg (``strategies/fedavg.py``); the personal models never leave their clients.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import pull_towards
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.personal import DittoHyper
from florilegium.models.parameters import Arrays, get_arrays, set_arrays


class DittoClient(BaseClient):
    """Trains two models: one for the federation, one for the client."""

    training = Training("gradients", stacked=True)
    uses_finetuning = "never"
    hyper: DittoHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the global model, then the personal one."""
        answer = super().train(arrays)
        set_arrays(self.model, arrays)
        anchors = [p.detach().clone() for p in self.model.parameters()]  # wᵗ
        set_arrays(self.model, self.state.load() or arrays)
        hook = pull_towards(anchors, self.hyper.regularization)
        self.descend("personal", epochs=self.hyper.personal_epochs or None, gradient_hook=hook)
        self.state.save(get_arrays(self.model))
        return answer

    def steps_a_round(self) -> int:
        """Return the number of training steps per round, of both models together."""
        return self.steps() + self.steps(self.hyper.personal_epochs or None)

    def personalise(self) -> bool:
        """Replace the received model by the personal model v_k, if the client has one."""
        own = self.state.load()
        if own is None:
            return False
        set_arrays(self.model, own)
        return True
