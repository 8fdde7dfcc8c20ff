"""Trained modules beside the model, server side: clients train both, and the server averages both.

The module's initial values come from the run's seed. ``server-learning-rate``, ``server-momentum`` and
``server-optimizer`` are for the model; the module takes the mean of the clients' updates.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import nn

from florilegium.clients.families.accompanied import beside
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.fedavg import FedAvg


class Accompanied(FedAvg):
    """FedAvg of a model and of a module that clients train with it."""

    @abstractmethod
    def companion(self, network: Arrays) -> nn.Module:
        """Return the module with its initial values, for a network with the arrays ``network``."""

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; initialise the module."""
        self.beside = beside(self.companion(self.federation.network))
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Average the clients' modules."""
        self.beside |= {
            name: (self.beside[name] + change / outcome.weight).astype(self.beside[name].dtype)
            for name, change in outcome.arrays.items()
            if name in self.beside
        }


class Conditional(Accompanied):
    """The same where clients need the module for predictions as well."""

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test their models; also send the module."""
        return super().measure(round, clients, model | self.beside)
