"""Ditto, client side (Li et al. 2021, Algorithm 1): a personal model beside the global one, tied to it.

Received: the global model wᵗ. Answered: the model trained from it, as in FedAvg. The personal model v_k goes on from
the client's state with F_k(v) + λ/2·‖v − wᵗ‖²; a client without one starts it at wᵗ. λ = 0 is local training.

Strategy: FedAvg (``strategies/fedavg.py``); the personal models never leave their clients.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer, BaseClient, only_gradients
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import pull_towards
from florilegium.clients.hyper.personal import DittoHyper
from florilegium.models.parameters import Arrays, get_arrays, set_arrays


class DittoClient(BaseClient):
    """Two models: one for the federation, one for the client."""

    example_gap = staticmethod(only_gradients)

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
        """Return those of both models."""
        return self.steps() + self.steps(self.hyper.personal_epochs or None)

    def personalise(self) -> bool:
        """Put the personal model v_k in the received one's place, where there is one yet."""
        own = self.state.load()
        if own is None:
            return False
        set_arrays(self.model, own)
        return True
