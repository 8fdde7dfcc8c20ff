"""L2P, client side (FedL2P, section 4.1.2): every client learns its own λ, alone, by the computation of FedL2P.

Receives the initial λ and, beside it, the model θ_g; returns only metrics. The client's λ is kept in its durable state.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.clients.fedl2p import FedL2PClient
from florilegium.models.parameters import Arrays


class L2PClient(FedL2PClient):
    """Learns how to fine-tune from its own data alone."""

    training = Training()

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Take K steps on the client's own λ, and save it."""
        answer = super().train(self._own(arrays))
        self.state.save(answer.arrays)
        return Answer({}, answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Fine-tune with the client's own λ, or the initial one if it has none yet; evaluate the model."""
        return super().test(self._own(arrays))

    @phase
    def describe(self, arrays: Arrays) -> Answer:
        """Return inputs and outputs of the meta-nets with the client's own λ."""
        return super().describe(self._own(arrays))

    def _own(self, arrays: Arrays) -> Arrays:
        return arrays | (self.state.load() or {})
