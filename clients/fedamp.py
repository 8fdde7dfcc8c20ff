"""FedAMP, client side (Huang et al. 2021, Algorithm 1): a model near the mixture that the server made for the client.

Receives u_i, a mixture of the clients' models. Trains w_i on F_i(w) + λ/(2α)·‖w − u_i‖², from u_i (``start = "cloud"``)
or from its last w_i (``"own"``), and returns it.
"""

from __future__ import annotations

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import pull_towards
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.banked import BankedClient
from florilegium.clients.hyper.bank import FedAMPHyper
from florilegium.models.parameters import Arrays, get_arrays, set_arrays


class FedAMPClient(BankedClient):
    """Trains its model under a pull towards the received mixture."""

    training = Training("gradients", stacked=True)
    hyper: FedAMPHyper

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train from u_i, or from w_i, under the pull towards u_i; return w_i and the mean loss."""
        set_arrays(self.model, arrays)
        anchors = [p.detach().clone() for p in self.model.parameters()]  # u_i
        if self.hyper.start == "own" and (own := self.state.load()) is not None:
            set_arrays(self.model, own)
        loss = self.descend(gradient_hook=pull_towards(anchors, self.hyper.regularization / self.hyper.step_size))
        trained = get_arrays(self.model)
        self.state.save(trained)
        return Answer(trained, len(self.data.train), {"loss": loss})
