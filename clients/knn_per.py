"""kNN-Per, client side (Marfoq et al. 2022): the global model, and the client's examples nearest in its features.

Training is FedAvg's. Before a test the client remembers its training examples by the features that the global model's
last block reads, and predicts λ·p_kNN + (1 − λ)·p_global. k and λ are those with the most training examples right, each
judged by the others (leave-one-out). Nothing is kept, so that clients never seen are served alike.

Strategy: FedAvg (``strategies/fedavg.py``).
"""

from __future__ import annotations

import numpy as np
from torch import nn

from florilegium.clients.core.base import BaseClient, more_than_gradients
from florilegium.clients.core.training import features
from florilegium.clients.hyper.personal import KNNPerHyper
from florilegium.common.settings import parse_whole
from florilegium.models.neighbours import Neighbours, index, probabilities
from florilegium.partitions.clientdata import Examples


class KNNPerClient(BaseClient):
    """A global model with a local memory."""

    example_gap = staticmethod(more_than_gradients)

    uses_finetuning = "never"
    hyper: KNNPerHyper
    model: nn.Sequential

    def personalise(self) -> bool:
        """Choose k and λ, and put the mixture in the received model's place."""
        train = self.data.train
        if not self.data.labeled or len(train) < 2:
            return False
        z = features(self.model[:-1], train)
        own = features(self.model[-1], Examples(z, train.y)).softmax(dim=1).cpu().numpy()
        remembered = z.flatten(1)
        kept, y = remembered.cpu().numpy(), train.y.cpu().numpy()
        best = (-1.0, 1, 0.0)  # share of examples right, k, λ
        for k in sorted({min(k, len(y) - 1) for k in parse_whole(self.hyper.neighbors)}):
            near = probabilities(index(kept, y, k, self.hyper.scale), None, own.shape[1])
            for weight in np.linspace(0, 1, self.hyper.weights + 1).tolist():
                right = float(((weight * near + (1 - weight) * own).argmax(axis=1) == y).mean())
                best = max(best, (right, k, weight), key=lambda choice: choice[0])
        _, k, weight = best
        self.predictor = Neighbours(self.model, remembered, train.y, k, weight, self.hyper.scale)
        return True
