"""Model decoupling, server side: FedAvg of the shared blocks; the server never receives the personal blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from florilegium.clients.core.network import check_trained
from florilegium.clients.core.wire import BESIDE
from florilegium.clients.families.decoupled import DecoupledClient
from florilegium.clients.hyper.personal import HeadHyper
from florilegium.models.blocks import block_names, last_blocks, named_blocks, of_blocks
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.run_folder import Checkpoint


class Decoupled(FedAvg):
    """Averages the shared blocks of the cohort's models, as FedAvg."""

    shares_head: ClassVar[bool]
    """True: the head is shared and the body personal; False: the other way round."""

    hyper: Any  # HeadHyper, unless a method names its blocks in another way

    def server_part(self, arrays: Arrays) -> Arrays:
        """Return the shared blocks of the network's arrays."""
        network, client = self.federation.network, self.federation.client
        shared = of_blocks(arrays, frozenset(block_names(network)) - self.own(network))
        if issubclass(client, DecoupledClient) and client.trains_shared_alone:
            check_trained(shared, self.settings)
        return shared

    def own(self, network: Collection[str]) -> frozenset[str]:
        """Return the blocks that are each client's own, given the names of the network's arrays."""
        table, h = self.settings.method, self.hyper
        if h.personal:
            return named_blocks(network, h.personal, f"{table}.personal")
        head = last_blocks(network, h.head_blocks, f"{table}.head-blocks")
        return frozenset(block_names(network)) - head if self.shares_head else head

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

    @staticmethod
    def messages(hyper: HeadHyper) -> Messages:
        """Return FedAvg's messages; features can be transferred if the head is only the last block."""
        own = "" if hyper.head_blocks == 1 else f"the last {hyper.head_blocks} blocks never reach the server"
        own = f"the blocks {hyper.personal} never reach the server" if hyper.personal else own
        return Messages("sum", step="mean", features=own or "whole")


class SharedHead(Decoupled):
    """Shared head, personal bodies. Strategy of LG-FedAvg."""

    messages = Messages("sum", step="mean", features="the body is each client's own")
    shares_head = True
