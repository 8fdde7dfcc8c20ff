"""LD-FedAvg, client side: a point v of the subspace for all clients (FLowDUP, section 5.1). Received, answered: v."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients.base import Answer, phase
from clients.subspace import SubspaceClient
from clients.wire import Config
from models.parameters import Arrays

POINT = "v"


class LDFedAvgClient(SubspaceClient):
    """Trains the common point."""

    @phase
    def train(self, arrays: Arrays, config: Config) -> Answer:
        """Take steps along the gradient of the loss in v; answer the new v."""
        examples = self.data.train
        point = nn.ParameterList([nn.Parameter(self._received(arrays).clone())])
        self.model.train()
        loss = self.descend(
            config,
            model=point,
            objective=lambda rows: cross_entropy(self.logits(examples.x[rows], point[0]), examples.y[rows]),
        )
        return Answer({POINT: point[0].detach().cpu().numpy()}, len(examples), {"loss": loss})

    @phase
    def test(self, arrays: Arrays, config: Config) -> Answer:
        """Evaluate the network at v."""
        self.become(self._received(arrays), self.data.train.x)
        return self.judged()

    def _received(self, arrays: Arrays) -> Tensor:
        """Return the received v."""
        self.expect_own_strategy(POINT in arrays)
        return torch.from_numpy(arrays[POINT]).to(self.data.train.y.device)
