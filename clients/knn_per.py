"""kNN-Per, client side (Marfoq et al. 2022): mix the global model with k nearest neighbours in its feature space.

Training is that of FedAvg. Before a test the client stores the features of its training examples, which are the inputs
of the global model's last block, and predicts with λ·p_kNN + (1 − λ)·p_global. k and λ are those with the highest
leave-one-out accuracy on the training examples. No state is kept, so unseen clients are treated in the same way.

Strategy: FedAvg (``strategies/fedavg.py``).
"""

from __future__ import annotations

import numpy as np
from torch import nn

from florilegium.clients.core.base import BaseClient, more_than_gradients, stackable
from florilegium.clients.core.training import features
from florilegium.clients.hyper.personal import KNNPerHyper
from florilegium.common.settings import parse_whole
from florilegium.models.blocks import body_and_classifier
from florilegium.models.neighbours import Neighbours, index, probabilities
from florilegium.partitions.clientdata import Examples


class KNNPerClient(BaseClient):
    """Predicts with the global model and nearest neighbours among the client's own examples."""

    example_gap = staticmethod(more_than_gradients)
    vectorise_gap = staticmethod(stackable)

    needs_blocks = True
    uses_finetuning = "never"
    hyper: KNNPerHyper
    model: nn.Sequential

    def personalise(self) -> bool:
        """Choose k and λ; make the mixture the client's predictor."""
        train = self.data.train
        if not self.data.labeled or len(train) < 2:
            return False
        body, classifier = body_and_classifier(self.model)
        z = features(body, train)
        own = features(classifier, Examples(z, train.y)).softmax(dim=1).cpu().numpy()
        remembered = z.flatten(1)
        kept, y = remembered.cpu().numpy(), train.y.cpu().numpy()
        best = (-1.0, 1, 0.0)  # leave-one-out accuracy, k, λ
        for k in sorted({min(k, len(y) - 1) for k in parse_whole(self.hyper.neighbors)}):
            near = probabilities(index(kept, y, k, self.hyper.scale), None, own.shape[1])
            for weight in np.linspace(0, 1, self.hyper.weights + 1).tolist():
                right = float(((weight * near + (1 - weight) * own).argmax(axis=1) == y).mean())
                best = max(best, (right, k, weight), key=lambda choice: choice[0])
        _, k, weight = best
        self.predictor = Neighbours(self.model, remembered, train.y, k, weight, self.hyper.scale)
        return True
