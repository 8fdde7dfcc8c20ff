"""kNN-Per: a network's predictions, mixed with those of the nearest neighbours among stored examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilegium.models.blocks import body_and_classifier

if TYPE_CHECKING:
    from sklearn.neighbors import KNeighborsClassifier

Features = NDArray[np.float32]


def index(features: Features, labels: NDArray[np.int64], k: int, scale: float) -> KNeighborsClassifier:
    """Return a k-nearest-neighbours classifier on ``features`` (n, d) and ``labels`` (n,).

    A neighbour at distance r has weight exp(−r²/(scale·d)).
    """
    from sklearn.neighbors import KNeighborsClassifier  # takes a second, and other methods' workers do not need it

    width = scale * features.shape[1]

    def weights(r: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return weights relative to the nearest neighbour's, so that they cannot all underflow to 0."""
        squares = r**2
        result: NDArray[np.float64] = np.exp((squares.min(axis=1, keepdims=True) - squares) / width)
        return result

    return KNeighborsClassifier(k, weights=weights).fit(features, labels)


def probabilities(found: KNeighborsClassifier, features: Features | None, classes: int) -> NDArray[np.float64]:
    """Return class probabilities (n, C) for ``features`` (n, d).

    Without ``features``, the probabilities of each stored example are computed from the other stored examples.
    """
    result = np.zeros((found.n_samples_fit_ if features is None else len(features), classes))
    result[:, found.classes_] = found.predict_proba(features)
    return result


class Neighbours(nn.Module):
    """A network that returns (1 − λ)·p(network) + λ·p(nearest neighbours).

    Distances between neighbours are measured in the features that the network's last block receives.

    Args:
        network: the network; its last block is the classifier.
        features: features of the stored examples, the output of all blocks but the last, (n, d).
        labels: classes of the stored examples, (n,).
        k: number of neighbours.
        weight: λ, 0..1.
        scale: scale of the neighbours' weights, as in :func:`index`.
    """

    onnx_gap: ClassVar[str] = "it looks up the nearest among stored examples (knn-per)"
    """Why the model cannot be written as ONNX."""

    def __init__(
        self, network: nn.Sequential, features: Tensor, labels: Tensor, k: float, weight: float, scale: float
    ) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("features", features)
        self.register_buffer("labels", labels.float())  # only floating-point tensors are saved
        self.register_buffer("mixture", torch.tensor([k, weight, scale]))
        self._index: KNeighborsClassifier | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities (n, C)."""
        k, weight, scale = self.get_buffer("mixture").tolist()
        if self._index is None:  # built on first use: a model read from a file gets its buffers after it is built
            kept, labels = self.get_buffer("features").cpu().numpy(), self.get_buffer("labels").cpu().numpy()
            self._index = index(kept, labels.astype(np.int64), int(k), scale)
        body, classifier = body_and_classifier(self.network)
        features = body(x)
        own: Tensor = classifier(features).softmax(dim=1)
        near = torch.from_numpy(
            probabilities(self._index, features.flatten(1).detach().cpu().numpy(), own.shape[1])
        ).to(own)
        return (weight * near + (1 - weight) * own).clamp_min(1e-12).log()
