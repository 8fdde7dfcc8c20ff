"""Model decoupling, server side: FedAvg of the shared blocks; the server never receives the personal blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from florilegium.clients.core.wire import BESIDE
from florilegium.clients.hyper.personal import HeadHyper
from florilegium.models.blocks import block_names, last_blocks, of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.exchange import Outcome
from florilegium.strategies.core.promises import mean_of_updates, only_sums, sums_of_updates, trains_by_updates
from florilegium.strategies.core.round import Round
from florilegium.strategies.core.run_folder import Checkpoint
from florilegium.strategies.fedavg import FedAvg


class Decoupled(FedAvg):
    """Averages the shared blocks of the cohort's models, as FedAvg."""

    shares_head: ClassVar[bool]
    """True: the head is shared and the body personal; False: the other way round."""

    hyper: HeadHyper

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the shared blocks of the network's arrays."""
        head = last_blocks(arrays, self.hyper.head_blocks, f"{self.settings.method}.head-blocks")
        shared = head if self.shares_head else frozenset(block_names(arrays)) - head
        return of_blocks(arrays, shared)

    def begin_from(self, network: Arrays, trained: Checkpoint) -> Arrays:
        """Return the shared blocks of another run's model; its other blocks, if any, become clients' initial ones."""
        shared = super().begin_from(network, trained)
        self.beside = {BESIDE + name: array for name, array in trained.arrays.items() if name not in shared}
        return shared

    def measure(self, round: Round, clients: Sequence[str], model: Arrays) -> Outcome:
        """Have ``clients`` test; also send initial personal blocks, for clients that have not trained."""
        return super().measure(round, clients, model | self.beside)


class SharedBody(Decoupled):
    """Shared body, personal heads. Strategy of FedPer, FedRep and FedBABU, which differ only in their clients."""

    shares_head = False
    privacy_gap = staticmethod(sums_of_updates)
    secure_gap = staticmethod(only_sums)
    buffer_gap = staticmethod(mean_of_updates)
    compression_gap = staticmethod(trains_by_updates)

    @staticmethod
    def transfer_gap(hyper: HeadHyper) -> str:
        """Return why features cannot be transferred, "" if the head is only the last block."""
        return "" if hyper.head_blocks == 1 else f"the last {hyper.head_blocks} blocks never reach the server"


class SharedHead(Decoupled):
    """Shared head, personal bodies. Strategy of LG-FedAvg."""

    shares_head = True
    privacy_gap = staticmethod(sums_of_updates)
    secure_gap = staticmethod(only_sums)
    buffer_gap = staticmethod(mean_of_updates)
    compression_gap = staticmethod(trains_by_updates)

    @staticmethod
    def transfer_gap(hyper: HeadHyper) -> str:
        """Return why features cannot be transferred."""
        return "the body is each client's own"
