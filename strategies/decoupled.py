"""Model decoupling, server side: FedAvg on the shared blocks of the network; the server never sees the others."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from clients.hyper import HeadHyper
from models.blocks import block_names, last_blocks, of_blocks
from models.parameters import Arrays
from strategies.fedavg import FedAvg
from strategies.run_folder import Checkpoint

log = logging.getLogger("flwr")


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
        """Start from the shared blocks of another run's model; clients' own start from the run's seed all the same."""
        shared = super().begin_from(network, trained)
        if unused := sorted(block_names(trained.arrays.keys() - shared.keys())):
            log.warning(
                "init: %s of '%s' go unused: in method '%s' they are each client's own, and start from the run's seed",
                ", ".join(unused), self.settings.init, self.settings.method,
            )  # fmt: skip
        return shared
