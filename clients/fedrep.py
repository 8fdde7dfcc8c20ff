"""FedRep, client side (Collins et al. 2021, Algorithm 1): first the personal head, then the shared body.

Receives and returns the body. The head is trained for k_h epochs with the received body frozen, then the body for k_b
epochs with the new head frozen. A client that has no head yet trains one, starting from θ₀, before a test.

Strategy: SharedBody (``strategies/families/decoupled.py``), FedAvg of the body.
"""

from __future__ import annotations

from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.decoupled import DecoupledClient
from florilegium.clients.hyper.personal import FedRepHyper


class FedRepClient(DecoupledClient):
    """Trains a personal head on the shared body, then the shared body with that head."""

    training = Training("gradients", stacked=True)
    trains_shared_alone = True
    uses_finetuning = "never"
    hyper: FedRepHyper

    def local_training(self) -> float:
        """Train the head, then the body; return the mean loss of the body's epochs."""
        self.train_head("head", epochs=self.hyper.head_epochs)
        return self.descend("body", epochs=self.hyper.body_epochs, groups=[self.group(personal=False)])

    def steps_a_round(self) -> int:
        """Return the number of training steps per round, of head and body together."""
        return self.steps(self.hyper.head_epochs) + self.steps(self.hyper.body_epochs)

    def steps_a_test(self) -> int:
        """Return 0, since a client that has trained has a head.

        A client without one pays the privacy cost of a new head at every test, which the plan does not include.
        """
        return 0

    def personalise(self) -> bool:
        """Train a new head if the client has none."""
        if self.state.load() is not None or not self.data.labeled or not self.hyper.new_head_epochs:
            return False
        self.train_head(epochs=self.hyper.new_head_epochs)
        return True
