"""LD-FedAvg, client side: one point v of the subspace for all clients (FLowDUP, section 5.1).

Receives and returns v.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import least_batch
from florilegium.clients.core.training_facts import Training
from florilegium.clients.families.subspace import SubspaceClient
from florilegium.models.parameters import Arrays

POINT = "v"


class LDFedAvgClient(SubspaceClient):
    """Trains the point v that all clients share."""

    training = Training("it has losses and steps of its own")

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train v on the client's examples; return the new v."""
        examples = self.data.train
        point = nn.ParameterList([nn.Parameter(self._received(arrays).clone())])
        least = least_batch(self.model, examples)
        self.model.train()
        loss = self.descend(
            model=point,
            least=least,
            objective=lambda rows: self.loss(self.logits(examples.x[rows], point[0]), rows),
        )
        return Answer({POINT: point[0].detach().cpu().numpy()}, len(examples), {"loss": loss})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the network with parameters θ₀ + Pv."""
        self.become(self._received(arrays), self.data.train.x)
        return self.judged()

    def _received(self, arrays: Arrays) -> Tensor:
        """Return the received v."""
        self.expect_own_strategy(POINT in arrays)
        return torch.from_numpy(arrays[POINT]).to(self.data.train.y.device)
