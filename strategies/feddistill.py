"""FedDistill, server side: federated distillation, FD (Jeong et al. 2018, Algorithm 1).

Sums the clients' mean logits of each class. The mean over the *other* clients, F̂, needs only the sum and the client's
own part, so the server tells each client for which classes the sums contain its logits. It therefore remembers in which
round each class's sums were made, and the clients whose logits they contain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.clients.feddistill import INCLUDED
from florilegium.models.parameters import Arrays
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.classwise import OWN_NETWORKS, UNBOUNDED, Classwise


class FedDistill(Classwise):
    """Sums the clients' mean logits."""

    messages = Messages(
        "statistics",
        features=OWN_NETWORKS,
        beside=UNBOUNDED,
        individual="the server remembers whose logits each sum contains",
    )

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._rounds = np.zeros(dataset_of(self.settings).classes, np.int64)  # in which each class's sums were made
        self._accepted: dict[str, int] = {}  # round of a client's last accepted logits, if some sums are of that round

    def size(self, network: Arrays) -> tuple[int, int]:
        """Return the number of classes, twice."""
        return len(self._rounds), len(self._rounds)

    def individual(self, clients: Sequence[str]) -> Arrays:
        """Return for each client and class the round in which the client added to the class's sums; 0: it has not."""
        accepted = np.array([self._accepted.get(client, -1) for client in clients], np.int64)[:, None]
        return {INCLUDED: np.where(accepted == self._rounds, self._rounds, 0)}

    def learn(self, round: Round, outcome: Outcome, new: NDArray[np.bool_]) -> None:
        """Remember whose logits the sums contain."""
        self._rounds = np.where(new, round.number, self._rounds)
        accepted = self._accepted | dict.fromkeys(outcome.clients, round.number)
        used = {*self._rounds.tolist()}
        self._accepted = {client: number for client, number in accepted.items() if number in used}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the rounds of the sums, and the clients that they contain, for checkpoints."""
        return {"rounds": self._rounds}, {"accepted": self._accepted}

    def restore(self, arrays: Arrays, facts: Mapping[str, Any]) -> None:
        """Restore the rounds of the sums, and the clients that they contain."""
        self._rounds, self._accepted = arrays["rounds"], dict(facts["accepted"])
