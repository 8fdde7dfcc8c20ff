"""L2P, server side (FedL2P, section 4.1.2): clients learn how to fine-tune the model, each alone.

Sent: the first λ and, beside it, the model θ_g. Nothing but numbers comes back.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from clients.wire import pack, unpack
from common.seeds import numpy_generator
from strategies.cohort import Cohort
from strategies.fedl2p import FedL2P

log = logging.getLogger("flwr")


class L2P(FedL2P):
    """FedL2P without averaging."""

    def sample(self, server_round: int) -> Cohort:
        """Return the clients whose turn it is, so that all take as many steps as each other, or one fewer."""
        learned = server_round - 1 - self.hyper.pretraining_rounds
        if learned < 0:
            return super().sample(server_round)
        clients = self.trainable()
        size = min(self.cohort_size(server_round), len(clients))
        order = numpy_generator(self.settings.seed, "turns").permutation(len(clients))
        turn = np.take(order, range(learned * size, (learned + 1) * size), mode="wrap")
        return Cohort((clients[i] for i in sorted(turn)), size)

    def train_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Have the cohort go on learning; in the first rounds, where asked for, make the model together."""
        if server_round <= self.hyper.pretraining_rounds:
            return super().train_round(server_round, arrays, grid)
        cohort, sent = self.sample(server_round), pack(unpack(arrays) | self.beside)
        outcome = self.exchange(grid, cohort, server_round, "train", reduce="sum", arrays=sent)
        self.count_skipped(outcome)
        log.info("round %d: loss %.4g, clients %d", server_round, outcome.mean("loss"), len(outcome.clients))
        return arrays

    def report(self) -> dict[str, Any]:
        """The steps that were skipped; there is no λ of all clients to report on."""
        return {"l2p": {"skipped_steps": self._skipped}}
