"""Local training, server side: in each round the clients of the cohort train their own models further.

Sends no arrays and receives only metrics. With the same number of rounds and the same cohorts, clients compute as much
as with FedAvg.
"""

from __future__ import annotations

import logging
from typing import ClassVar, Literal

from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.messages import Messages

log = logging.getLogger("flwr")


class Local(CohortStrategy):
    """Has each client train its own model, without sharing anything."""

    messages = Messages("nothing", features="every client has a network of its own")
    models: ClassVar[Literal["global", "own", "none"]] = "own"

    def trainable(self) -> list[str]:
        """Return the seen and unseen clients: since nothing is shared, unseen clients train as well."""
        return self.clients.ids("seen", "unseen")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the round's cohort train their own models further; only the training loss is returned."""
        outcome = round.ask("train", round.sample(), reduce="sum")
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        return model
