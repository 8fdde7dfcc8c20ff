"""FedSA-LoRA, server side (Guo et al. 2025): FedAvg of A, and of the head if it is shared; B stays with each client."""

from __future__ import annotations

from collections.abc import Collection

from florilegium.clients.hyper.personal import FedSALoRAHyper
from florilegium.models.blocks import last_blocks, named_blocks
from florilegium.strategies.exchange.messages import Messages
from florilegium.strategies.families.decoupled import Decoupled


class FedSALoRA(Decoupled):
    """Averages all blocks but B and, unless it is shared, the head."""

    messages = Messages("sum", step="mean", features="B never reaches the server")
    hyper: FedSALoRAHyper

    def own(self, network: Collection[str]) -> frozenset[str]:
        """Return B, and the last block if each client has its own."""
        head = last_blocks(network, 1, "model") if self.hyper.head == "personal" else frozenset()
        return named_blocks(network, "B", "adapter.kind") | head
