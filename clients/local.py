"""Local training, client side: each client alone, the lower reference of every comparison.

Nothing is received and nothing but numbers is answered: a client goes on training its own model, kept in its durable
state, from the common initial model θ₀.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer, BaseClient, only_gradients
from florilegium.clients.core.phases import phase
from florilegium.models.parameters import Arrays, get_arrays


class LocalClient(BaseClient):
    """Trains a model of its own and shares nothing."""

    example_gap = staticmethod(only_gradients)

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Go on training the client's own model."""
        answer = super().train(self._own())
        self.state.save(get_arrays(self.model))
        return Answer({}, answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the client's own model."""
        return super().test(self._own())

    def _own(self) -> Arrays:
        return self.state.load() or self.initial
