"""FedBABU, client side (Oh et al. 2022, Algorithm 1): the body is trained while the head stays fixed.

Receives and returns the body. In training the head keeps its initial value from θ₀, the same for all clients; before a
test the client fine-tunes a copy of the whole network, the head or the body for ``finetune-epochs``.

Strategy: SharedBody (``strategies/families/decoupled.py``), FedAvg of the body.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.decoupled import DecoupledClient
from florilegium.clients.hyper.personal import FedBABUHyper
from florilegium.models.batch_norm import norms_of


class FedBABUClient(DecoupledClient):
    """Trains a shared body with a fixed random head, the same for all clients."""

    training = Training("gradients", stacked=True)
    trains_shared_alone = True
    keeps_personal = False
    uses_finetuning = "always"
    hyper: FedBABUHyper

    def local_training(self) -> float:
        """Train the body with the head frozen."""
        return self.descend(groups=[self.group(personal=False)])

    def personalise(self) -> bool:
        """Fine-tune the part of the network that ``fedbabu.finetune`` names."""
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        with self.finetuning():
            # With each batch's own statistics in batch norm, features differ between epochs.
            if self.hyper.finetune == "head" and (self._fixed_norms or not norms_of(self.model)):
                self.train_head(epochs=epochs)
            else:
                part = self.hyper.finetune
                groups = None if part == "whole" else [self.group(personal=part == "head")]
                self.descend(epochs=epochs, groups=groups)
        return True
