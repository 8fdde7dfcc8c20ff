"""A network and the examples it is remembered with: predictions of both, mixed (kNN-Per)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from sklearn.neighbors import KNeighborsClassifier

Features = NDArray[np.float32]


def index(features: Features, labels: NDArray[np.int64], k: int, scale: float) -> KNeighborsClassifier:
    """Return a classifier by the k nearest of ``features`` (n, d); one at distance r counts exp(−r²/(scale·d))."""
    from sklearn.neighbors import KNeighborsClassifier  # takes a second, which workers of other methods shall not wait

    width = scale * features.shape[1]

    def weights(r: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights relative to the nearest neighbour's, so that not all of them vanish."""
        squares = r**2
        result: NDArray[np.float64] = np.exp((squares.min(axis=1, keepdims=True) - squares) / width)
        return result

    return KNeighborsClassifier(k, weights=weights).fit(features, labels)


def probabilities(found: KNeighborsClassifier, features: Features | None, classes: int) -> NDArray[np.float64]:
    """Return class probabilities (n, C); without ``features``, of every remembered example by the others."""
    result = np.zeros((found.n_samples_fit_ if features is None else len(features), classes))
    result[:, found.classes_] = found.predict_proba(features)
    return result


class Neighbours(nn.Module):
    """(1 − λ)·p of the network + λ·p of the nearest neighbours in the features that its last block reads.

    Args:
        network: the network; its last block is the classifier.
        features: what the other blocks make of the remembered inputs, (n, d).
        labels: their classes (n,).
        k: how many neighbours count.
        weight: λ, 0..1.
        scale: of :func:`index`.
    """

    def __init__(
        self, network: nn.Sequential, features: Tensor, labels: Tensor, k: float, weight: float, scale: float
    ) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("features", features)
        self.register_buffer("labels", labels.float())  # stored are floating-point tensors only
        self.register_buffer("mixture", torch.tensor([k, weight, scale]))
        self._index: KNeighborsClassifier | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return log-probabilities (n, C)."""
        k, weight, scale = self.get_buffer("mixture").tolist()
        if self._index is None:  # made when first used: a model read from a file has its contents by then
            kept, labels = self.get_buffer("features").cpu().numpy(), self.get_buffer("labels").cpu().numpy()
            self._index = index(kept, labels.astype(np.int64), int(k), scale)
        features = self.network[:-1](x)
        own: Tensor = self.network[-1](features).softmax(dim=1)
        near = torch.from_numpy(
            probabilities(self._index, features.flatten(1).detach().cpu().numpy(), own.shape[1])
        ).to(own)
        return (weight * near + (1 - weight) * own).clamp_min(1e-12).log()
