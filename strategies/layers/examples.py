"""Privacy of examples, server side (``privacy.unit = "example"``): what clients say of their privacy costs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from florilegium.models.parameters import Arrays
from florilegium.privacy.delta import delta_warning
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.layers.example_privacy import expected_trainings
from florilegium.strategies.layers.layer import Layer, Running

log = logging.getLogger("flwr")


class Examples(Layer):
    """Hears what clients say of their privacy costs.

    Attributes:
        accounts: what they have said.
    """

    def __init__(self, running: Running) -> None:
        self._running, self.accounts = running, running.accounts

    @classmethod
    def opened(cls, running: Running) -> Self | None:
        """Return the layer if examples are protected."""
        return cls(running) if running.settings.privacy.unit == "example" else None

    def begin(self, first: Arrays, rounds: int, done: int) -> None:
        """Warn of a δ that is large for the clients' numbers of examples."""
        running, δ = self._running, self._running.settings.privacy.delta
        examples = max((running.clients[client].train for client in running.trainable()), default=0)
        if warning := delta_warning("privacy.delta", δ, examples, "examples of the largest client"):
            log.warning("%s", warning)

    def work(self) -> Mapping[str, float]:
        """Return the expected numbers of trainings and tests, which a client's budget must cover."""
        return expected_trainings(self._running.settings, self._running.shares())

    def settle(self, exchange: Exchange, outcome: Outcome) -> Outcome:
        """Note the clients' costs, and take them out of their metrics."""
        self.accounts.hear(outcome)
        return outcome

    def facts(self) -> dict[str, Any]:
        """Return the costs, for checkpoints."""
        return self.accounts.facts()

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the costs."""
        self.accounts.take_back(facts)

    def report(self) -> dict[str, Any]:
        """Return the block ``privacy``."""
        return self.accounts.report(self._running.settings.privacy.delta)
