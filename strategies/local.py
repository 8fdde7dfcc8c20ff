"""Local training, server side: the cohort of each round goes on training, each client its own model.

Nothing is sent and nothing but numbers comes back; the same number of rounds and the same cohorts as FedAvg make
the computation equal.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.round import Round

log = logging.getLogger("flwr")


class Local(CohortStrategy):
    """Each client alone."""

    broadcasts_model: ClassVar[bool] = False

    @staticmethod
    def transfer_gap(hyper: Any) -> str:
        """Return why features cannot be transferred."""
        return "every client has a network of its own"

    @staticmethod
    def privacy_gap(hyper: Any) -> str:
        """Return why the keys of table ``privacy`` are not for this method."""
        return "nothing is shared, so that there is nothing to protect"

    def trainable(self) -> list[str]:
        """Return all labeled clients: where nothing is shared, the unseen ones train as well."""
        return self.roster.ids("seen", "unseen")

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Ask the round's cohort to go on training; nothing but the training loss comes back."""
        outcome = round.ask("train", round.sample(), reduce="sum")
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        return model
