"""Local training, client side: each client trains alone, a baseline for every comparison.

Receives no arrays and returns only metrics. A client keeps its own model in its durable state and trains it further in
every round; it starts from the common initial model θ₀.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training_facts import Training
from florilegium.models.parameters import Arrays, get_arrays


class LocalClient(BaseClient):
    """Trains its own model and shares nothing."""

    training = Training("gradients", stacked=True)

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the client's own model further; return no arrays."""
        answer = super().train(self.own())
        self.state.save(get_arrays(self.model))
        return Answer({}, answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the client's own model."""
        return super().test(self.own())

    def own(self) -> Arrays:
        """Return the arrays of the client's own model, at first those of θ₀."""
        return self.state.load() or self.initial
