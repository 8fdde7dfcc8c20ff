"""Prior shift, server side: FedAvg, and the mean p̂ of the clients' class frequencies, which all clients receive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.classwise import PriorShiftHyper
from florilegium.clients.prior_shift import PRIOR
from florilegium.models.blocks import classifier_shape
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg


class PriorShift(FedAvg):
    """FedAvg that also averages class frequencies."""

    messages = Messages("sum", step="mean", features="whole")
    hyper: PriorShiftHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the network's arrays; begin with equal frequencies of all classes."""
        if self.hyper.federation == "measured":
            classes, _ = classifier_shape(self.federation.network, "prior-shift")
            self.beside = {BESIDE + PRIOR: np.full(classes, 1 / classes, np.float32)}
        return arrays

    def learn(self, round: Round, model: Arrays, outcome: Outcome) -> None:
        """Average the class frequencies over the rounds so far: p̂ ← p̂ + (cohort's mean − p̂)/t."""
        for name, p̂ in self.beside.items():
            change = outcome.arrays.get(name, np.zeros_like(p̂)) / outcome.weight  # of the cohort's mean from p̂
            moved = np.clip(p̂ + change / round.number, 0, 1)  # noise may move it outside
            if total := float(moved.sum()):
                self.beside = self.beside | {name: (moved / total).astype(p̂.dtype)}

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test their models; also send p̂."""
        return super().measure(round, clients, model | self.beside)
