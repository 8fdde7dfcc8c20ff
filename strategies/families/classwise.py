"""One vector per class, server side: sums of the clients' vectors and of their weights; no model reaches the server.

The server's arrays are, for each class, the weighted sum of the vectors of the cohort in which the class last occurred,
and the sum of the weights. Clients divide one by the other.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.families.classwise import SUMS, WEIGHTS
from florilegium.models.parameters import Arrays, shapes_of
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome

log = logging.getLogger("flwr")

OWN_NETWORKS = "every client has a network of its own"
"""Why features cannot be transferred."""
UNBOUNDED = "clients send sums of features or logits of each class, and nothing bounds them"
"""What clients return: no change of what they received."""


class Classwise(CohortStrategy):
    """Has clients train their own models, and sums what they send of each class."""

    models: ClassVar[Literal["global", "own", "none"]] = "own"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)

    @abstractmethod
    def size(self, network: Arrays) -> tuple[int, int]:
        """Return the number of classes C and the length d of a vector, given the network's arrays."""

    def individual(self, clients: Sequence[str]) -> Arrays:
        """Return arrays of which each client gets its own entry of the leading axis. By default: none."""
        return {}

    def learn(self, round: Round, outcome: Outcome, new: NDArray[np.bool_]) -> None:
        """Update a method's own state; ``new`` (C,) are the classes with new sums. By default: do nothing."""

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return empty sums."""
        classes, d = self.size(self.federation.network)
        return {SUMS: np.zeros((classes, d), np.float32), WEIGHTS: np.zeros(classes, np.float32)}

    def train_round(self, round: Round, model: Arrays) -> Arrays:
        """Have the cohort train; return the new sums, and the earlier ones of classes that the cohort lacks."""
        cohort = round.sample()
        outcome = round.ask(
            "train", cohort, reduce="sum", send=model, scatter=self.individual(cohort), shapes=shapes_of(model)
        )  # fmt: skip
        log.info("round %d: loss %.4g, clients %d", round.number, outcome.mean("loss"), len(outcome.clients))
        new = self._usable(outcome)
        self.learn(round, outcome, new)
        return {
            name: np.where(new.reshape(-1, *[1] * (array.ndim - 1)), outcome.arrays[name], array).astype(array.dtype)
            for name, array in model.items()
        }

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test their own models; some need the sums for it."""
        scatter = self.individual(clients)
        return round.ask("test", clients, reduce="sum", send=model, scatter=scatter, evaluation=True)

    def _usable(self, outcome: Outcome) -> NDArray[np.bool_]:
        """Return for each class (C,) whether the cohort has it, with a total weight that its clients can have."""
        weights = outcome.arrays[WEIGHTS]
        uniform = self.settings.weighting == "uniform"
        due = sum(1 if uniform else self.clients[client].train for client in outcome.clients)
        if wrong := [int(c) for c in np.flatnonzero((weights < 0) | (weights > due))]:
            log.warning(
                "classes %s keep their earlier sums: the weights sent, %s, are not between 0 and %d",
                wrong, weights[wrong].tolist(), due,
            )  # fmt: skip
        usable: NDArray[np.bool_] = (weights > 0) & (weights <= due)
        return usable
