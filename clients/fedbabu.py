"""FedBABU, client side (Oh et al. 2022, Algorithm 1): the body is trained under a head that never changes.

Received and answered: the body. The head stays at its common initial value θ₀ in training; before a test the client
fine-tunes a copy of the whole network, the head or the body for ``finetune-epochs``.

Strategy: SharedBody (``strategies/families/decoupled.py``), FedAvg of the body.
"""

from __future__ import annotations

from florilegium.clients.core.base import only_gradients
from florilegium.clients.core.training import Group
from florilegium.clients.families.decoupled import DecoupledClient
from florilegium.clients.hyper.personal import FedBABUHyper
from florilegium.models.batch_norm import norms_of


class FedBABUClient(DecoupledClient):
    """A shared body, trained under a common random head."""

    example_gap = staticmethod(only_gradients)

    keeps_personal = False
    uses_finetuning = "always"
    hyper: FedBABUHyper

    def local_training(self) -> float:
        """Train the body with the head frozen."""
        return self.descend(groups=[self._group("body")])

    def personalise(self) -> bool:
        """Fine-tune what ``fedbabu.finetune`` says."""
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        with self.finetuning():
            # Where batch norm takes each batch's statistics, features are not the same in every epoch.
            if self.hyper.finetune == "head" and (self._fixed_norms or not norms_of(self.model)):
                self.train_head(epochs=epochs)
            else:
                self.descend(epochs=epochs, groups=[self._group(self.hyper.finetune)])
        return True

    def _group(self, part: str) -> Group:
        body, head = self.parts()
        chosen = {"body": body, "head": head, "whole": self.model}[part]
        return Group(list(chosen.parameters()), self.settings.learning_rate)
