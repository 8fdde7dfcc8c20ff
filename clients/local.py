"""Local training, client side: each client alone, the lower reference of every comparison.

Nothing is received and nothing but numbers is answered: a client goes on training its own model, kept in its durable
state, from the common initial model θ₀.
"""

from __future__ import annotations

from typing import Any

from clients.base import Answer, BaseClient, phase
from clients.wire import Config
from models.parameters import Arrays, get_arrays


class LocalClient(BaseClient):
    """Trains a model of its own and shares nothing."""

    @staticmethod
    def example_gap(hyper: Any) -> str:
        """Nothing does."""
        return ""

    @phase
    def train(self, arrays: Arrays, config: Config) -> Answer:
        """Go on training the client's own model."""
        answer = super().train(self._own(), config)
        self.state.save(get_arrays(self.model))
        return Answer({}, answer.num_examples, answer.metrics)

    @phase
    def test(self, arrays: Arrays, config: Config) -> Answer:
        """Evaluate the client's own model."""
        return super().test(self._own(), config)

    def _own(self) -> Arrays:
        return self.state.load() or self.initial
