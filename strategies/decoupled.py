"""Model decoupling, server side: FedAvg on the shared blocks of the network; the server never sees the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from clients.hyper import HeadHyper
from clients.wire import BESIDE, pack, unpack
from models.blocks import block_names, last_blocks, of_blocks
from models.parameters import Arrays
from strategies.exchange import Outcome
from strategies.fedavg import FedAvg
from strategies.run_folder import Checkpoint


class Decoupled(FedAvg):
    """Weighted averaging of a part of the cohort's models."""

    shares_head: ClassVar[bool] = False
    """Whether the head is shared and the body personal, rather than the other way round."""

    hyper: HeadHyper

    @classmethod
    def transfer_gap(cls, hyper: Any) -> str:
        """Return what is missing."""
        if cls.shares_head:
            return "the body is each client's own"
        return "" if hyper.head_blocks == 1 else f"the last {hyper.head_blocks} blocks never reach the server"

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the shared blocks."""
        head = last_blocks(arrays, self.hyper.head_blocks, f"{self.settings.method}.head-blocks")
        shared = head if self.shares_head else frozenset(block_names(arrays)) - head
        return of_blocks(arrays, shared)

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Start from another run's model: from its shared blocks; and clients' own, if it has any, from those."""
        shared = super().begin_from(network, trained)
        self.beside = {BESIDE + name: array for name, array in trained.arrays.items() if name not in shared}
        return shared

    def measure(
        self, clients: Sequence[str], server_round: int, arrays: ArrayRecord, grid: Grid, config: ConfigRecord
    ) -> Outcome:
        """Send what clients' own blocks start from to tests too, for those that have not trained."""
        sent = pack(unpack(arrays) | self.beside) if self.beside else arrays
        return super().measure(clients, server_round, sent, grid, config)
