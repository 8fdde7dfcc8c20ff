"""FedBABU, client side (Oh et al. 2022, Algorithm 1): the body is trained under a head that never changes.

Received and answered: the body. The head stays at its common initial value θ₀ in training; before a test the client
fine-tunes a copy of the whole network, the head or the body for ``finetune-epochs``.
"""

from __future__ import annotations

from clients.decoupled import DecoupledClient
from clients.hyper import FedBABUHyper
from clients.training import Group
from clients.wire import Config


class FedBABUClient(DecoupledClient):
    """A shared body, trained under a common random head."""

    keeps_personal = False
    hyper: FedBABUHyper

    def local_training(self, config: Config) -> float:
        """Train the body with the head frozen."""
        return self.descend(config, groups=[self._group("body")])

    def personalise(self, config: Config) -> bool:
        """Fine-tune what ``fedbabu.finetune`` says."""
        epochs = self.settings.finetune_epochs
        if not epochs or not self.data.labeled:
            return False
        with self.finetuning():
            if self.hyper.finetune == "head":
                self.train_head(config, epochs=epochs)
            else:
                self.descend(config, epochs=epochs, groups=[self._group(self.hyper.finetune)])
        return True

    def _group(self, part: str) -> Group:
        body, _ = self.parts()
        chosen = body if part == "body" else self.model
        return Group(list(chosen.parameters()), self.settings.learning_rate)
