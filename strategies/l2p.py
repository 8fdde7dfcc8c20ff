"""L2P, server side (FedL2P, section 4.1.2): clients learn how to fine-tune the model, each alone.

Sent: the first λ and, beside it, the model θ_g. Nothing but numbers comes back.
"""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from clients.wire import pack, unpack
from strategies.fedl2p import FedL2P

log = logging.getLogger("flwr")


class L2P(FedL2P):
    """FedL2P without averaging."""

    def train_round(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> ArrayRecord:
        """Have the cohort go on learning; in the first rounds, where asked for, make the model together."""
        if server_round <= self.hyper.pretraining_rounds:
            return super().train_round(server_round, arrays, grid)
        cohort, sent = self.sample(server_round), pack(unpack(arrays) | self.beside)
        outcome = self.exchange(grid, cohort, server_round, "train", reduce="sum", arrays=sent)
        if skipped := int(outcome.metrics["skipped"].sum()):
            log.warning("%d steps of meta-nets were skipped: fine-tuning gave NaN or infinity", skipped)
        log.info("round %d: loss %.4g, clients %d", server_round, outcome.mean("loss"), len(outcome.clients))
        return arrays

    def report(self) -> dict[str, Any]:
        """There is no λ of all clients to report on."""
        return {}
