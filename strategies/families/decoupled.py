"""Model decoupling, server side: FedAvg on the shared blocks of the network; the server never sees the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.personal import HeadHyper
from florilegium.models.blocks import block_names, last_blocks, of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.cohort import sums_of_updates
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.run_folder import Checkpoint
from florilegium.strategies.fedavg import FedAvg


class Decoupled(FedAvg):
    """Weighted averaging of a part of the cohort's models."""

    shares_head: ClassVar[bool]
    """Whether the head is shared and the body personal, rather than the other way round."""

    hyper: HeadHyper

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

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Send what clients' own blocks start from to tests too, for those that have not trained."""
        return super().measure(round, clients, model | self.beside)


class SharedBody(Decoupled):
    """A shared body; the heads stay with the clients. FedPer, FedRep and FedBABU differ in what clients do."""

    shares_head = False
    privacy_gap = staticmethod(sums_of_updates)

    @staticmethod
    def transfer_gap(hyper: HeadHyper) -> str:
        """Return why features cannot be transferred: blocks before the last one may stay with the clients too."""
        return "" if hyper.head_blocks == 1 else f"the last {hyper.head_blocks} blocks never reach the server"


class SharedHead(Decoupled):
    """A shared head on personal bodies (LG-FedAvg)."""

    shares_head = True
    privacy_gap = staticmethod(sums_of_updates)

    @staticmethod
    def transfer_gap(hyper: HeadHyper) -> str:
        """Return why features cannot be transferred."""
        return "the body is each client's own"
