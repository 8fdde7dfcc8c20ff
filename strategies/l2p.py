"""L2P, server side (FedL2P, section 4.1.2): each client learns alone how to fine-tune the model.

Sends the initial λ and, beside it, the model θ_g. Receives only metrics.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from florilegium.common.seeds import numpy_generator
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.exchange.requests import Cohort
from florilegium.strategies.fedl2p import FedL2P

log = logging.getLogger("flwr")


class L2P(FedL2P):
    """FedL2P without averaging."""

    messages = Messages("nothing", features="it learns how to fine-tune features, not features")

    def sample(self, round: Round) -> Cohort:
        """Return the clients whose turn it is, so that clients' numbers of training rounds differ by at most one.

        The turn of a client that is offline goes to the next one.
        """
        learned = round.number - 1 - self.hyper.pretraining_rounds
        if learned < 0:
            return super().sample(round)
        clients = self.trainable()
        size = min(round.size, len(clients))
        order = numpy_generator(self.settings.seed, "turns").permutation(len(clients))
        places = {clients[i]: place for place, i in enumerate(np.roll(order, -learned * size))}
        turn = {*sorted(self.clients.online(clients), key=places.__getitem__)[:size]}
        return Cohort((client for client in clients if client in turn), len(turn))

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort continue to learn, each client alone; in the pretraining rounds, train the model θ_g."""
        if round.number <= self.hyper.pretraining_rounds:
            return super().train_round(round, model)
        outcome = round.ask("train", round.sample(), send=model | self.beside, reduce="sum")
        self.count_skipped(outcome)
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        return model

    def report(self) -> dict[str, Any]:
        """Return the number of skipped steps; there is no common λ to report on."""
        return {"l2p": {"skipped_steps": self._skipped}}
