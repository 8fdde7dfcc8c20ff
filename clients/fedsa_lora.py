"""FedSA-LoRA, client side (Guo et al. 2025): A, B and the head are trained together; A alone is shared.

Receives and returns A; with key ``fedsa-lora.head = "shared"`` the head, too. B is the client's own.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.decoupled import DecoupledClient


class FedSALoRAClient(DecoupledClient):
    """Trains a shared A, a personal B, and the head."""

    training = Training("gradients", stacked=True)
