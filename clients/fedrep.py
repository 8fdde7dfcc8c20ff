"""FedRep, client side (Collins et al. 2021, Algorithm 1): first the personal head, then the shared body.

Received and answered: the body. The head is trained for k_h epochs with the received body frozen, then the body for k_b
epochs with the new head frozen.
"""

from __future__ import annotations

from pydantic import Field

from clients.decoupled import DecoupledClient, HeadHyper
from clients.training import Group
from clients.wire import Config


class Hyper(HeadHyper):
    """Keys ``fedrep.*``."""

    head_epochs: int = Field(ge=0, description="k_h, epochs of the head in a round; `local-epochs` is not used")
    body_epochs: int = Field(ge=1, description="k_b, epochs of the body in a round")


class FedRepClient(DecoupledClient):
    """A personal head that is fitted to the shared body, and a body that is fitted to the head."""

    hyper: Hyper

    def local_training(self, config: Config) -> float:
        """Train the head, then the body; return the mean loss of the body's epochs."""
        self.train_head(config, "head", epochs=self.hyper.head_epochs)
        body, _ = self.parts()
        rate = self.settings.learning_rate
        return self.descend(
            config, "body", epochs=self.hyper.body_epochs, groups=[Group(list(body.parameters()), rate)]
        )
