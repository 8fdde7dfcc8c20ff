"""kNN-Per, client side (Marfoq et al. 2022): mix the global model with k nearest neighbours in its feature space.

Training is that of FedAvg. Before a test the client stores the features of its training examples, which are the inputs
of the global model's last block, and predicts with λ·p_kNN + (1 − λ)·p_global. k and λ are those with the highest
leave-one-out accuracy on the training examples, or with the highest accuracy on held-out ones. No state is kept, so
unseen clients are treated in the same way.

Strategy: ``strategies/knn_per.py``.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from florilegium.clients.core.base import BaseClient
from florilegium.clients.core.training import features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.personal import KNNPerHyper
from florilegium.common.errors import RunError
from florilegium.common.settings import parse_whole
from florilegium.models.blocks import body_and_classifier
from florilegium.models.neighbours import Neighbours, index, probabilities
from florilegium.partitions.clientdata import Examples
from florilegium.tasks.task import CLASSES


class KNNPerClient(BaseClient):
    """Predicts with the global model and nearest neighbours among the client's own examples."""

    training = Training("the examples themselves are its memory", stacked=True)
    needs = frozenset({CLASSES})

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
        remembered = z.flatten(1)
        judged, asked = train, None  # each example by the others
        if self.hyper.choose_on == "held-out":
            judged = self.data.validation
            if not len(judged):
                raise RunError("it holds out no example to choose k and λ on; raise validation-fraction")
            z = features(body, judged)
            asked = z.flatten(1).cpu().numpy()
        own = features(classifier, Examples(z, judged.y)).softmax(dim=1).cpu().numpy()
        kept, labels, y = remembered.cpu().numpy(), train.y.cpu().numpy(), judged.y.cpu().numpy()
        choices = []  # correct predictions, λ, k
        for k in sorted({min(k, len(labels) - 1) for k in parse_whole(self.hyper.neighbors)}):
            near = probabilities(index(kept, labels, k, self.hyper.scale), asked, own.shape[1])
            for weight in np.linspace(0, 1, self.hyper.weights + 1).tolist():
                right = int(((weight * near + (1 - weight) * own).argmax(axis=1) == y).sum())
                choices.append((right, weight, k))
        # Leave-one-out favours the global model, which was trained on the example itself: ties go to the neighbours.
        _, weight, k = max(choices, key=lambda choice: (choice[0], choice[1], -choice[2]))
        self.predictor = Neighbours(self.model, remembered, train.y, k, weight, self.hyper.scale)
        return True
