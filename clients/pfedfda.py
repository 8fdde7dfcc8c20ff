"""pFedFDA, client side (McLaughlin and Su 2024, Algorithm 1): a generative classifier, adapted to the client's data.

Features z of class c are modelled as Gaussian, N(μ_c, Σ), which gives a linear classifier. Receives the extractor (all
blocks but the last) and the global (μ, Σ). The client trains the extractor with the classifier of (μ, Σ) and its own
class frequencies π_k, estimates (μ̂_k, Σ̂_k) from its features, and returns the extractor with
(μ_k, Σ_k) = β·(μ̂_k, Σ̂_k) + (1 − β)·(μ, Σ), where β ∈ [0, 1] minimises the cross-validated loss. Before a test it
adapts (μ, Σ) in the same way, with the received extractor. No state is kept between rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import nn

from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.reports import SHARE, Reports
from florilegium.clients.core.training import Group, features
from florilegium.clients.core.training_facts import Training
from florilegium.clients.hyper.personal import PFedFDAHyper
from florilegium.common.seeds import numpy_generator
from florilegium.models.blocks import body_and_classifier
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.tasks.task import CLASSES

MEANS, COVARIANCE = "gaussian.means", "gaussian.covariance"
Matrix = NDArray[np.float64]


def classifier(μ: Matrix, Σ: Matrix, π: Matrix, shrinkage: float) -> tuple[Matrix, Matrix]:
    """Return weights (C, d) and biases (C,) of Bayes' rule for N(μ_c, Σ) and class frequencies π (linear discriminant).

    Args:
        μ: class means (C, d).
        Σ: common covariance (d, d).
        π: class frequencies (C,), > 0.
        shrinkage: Σ is replaced by (1 − s)Σ + s·tr(Σ)/d·I, so that it can be inverted.
    """
    d = len(Σ)
    regular = (1 - shrinkage) * Σ + shrinkage * max(float(np.trace(Σ)), 1e-12) / d * np.eye(d)
    weights: Matrix = np.linalg.solve(regular, μ.T).T.astype(np.float64)
    biases: Matrix = np.log(π) - 0.5 * np.einsum("cd,cd->c", weights, μ)
    return weights, biases


def estimate(z: Matrix, y: NDArray[np.int64], μ: Matrix, ridge: float) -> tuple[Matrix, Matrix]:
    """Return class means (C, d) and pooled covariance plus ``ridge``·I (d, d) of features z (n, d).

    A class without examples keeps its mean in ``μ``.
    """
    means = μ.copy()
    for c in np.unique(y):
        means[c] = z[y == c].mean(axis=0)
    centred = z - means[y]
    Σ: Matrix = centred.T @ centred / max(1, len(z) - 1) + ridge * np.eye(z.shape[1])
    return means, Σ


def folds_of(y: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a fold 0..count−1 for each example, with each class spread evenly (stratified cross-validation)."""
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    folds = np.empty(len(y), dtype=np.int64)
    folds[order] = np.arange(len(y)) % count
    return folds


class PFedFDAClient(BaseClient):
    """Trains a shared extractor; its classifier follows from Gaussians that mix global and own estimates."""

    training = Training("it learns means and covariances of all examples together", stacked=True)
    needs = frozenset({CLASSES})

    needs_blocks = True
    uses_finetuning = "never"
    hyper: PFedFDAHyper
    reports: ClassVar[Reports] = {"beta": SHARE}
    model: nn.Sequential

    @phase
    def train(self, arrays: Arrays) -> Answer:
        """Train the extractor, then adapt the Gaussians to its features of the client's data."""
        body, μ, Σ = self._receive(arrays)
        self._set_classifier(μ, Σ)
        extractor, _ = body_and_classifier(self.model)
        loss = self.descend(groups=[Group(list(extractor.parameters()), self.settings.learning_rate)])
        trained = get_arrays(self.model)
        μ_k, Σ_k, β = self._adapt(μ, Σ)
        gaussians = {MEANS: μ_k.astype(np.float32), COVARIANCE: Σ_k.astype(np.float32)}
        return Answer({n: trained[n] for n in body} | gaussians, len(self.data.train), {"loss": loss, "beta": β})

    @phase
    def test(self, arrays: Arrays) -> Answer:
        """Evaluate the global classifier and the adapted one."""
        body, self._μ, self._Σ = self._receive(arrays)
        self._set_classifier(self._μ, self._Σ)
        return super().test(body)

    def personalise(self) -> bool:
        """Adapt the classifier to the client's training examples."""
        if not self.data.labeled:
            return False
        μ_k, Σ_k, _ = self._adapt(self._μ, self._Σ)
        self._set_classifier(μ_k, Σ_k)
        return True

    # --------------------------------------------------------------------------------------- details

    def _receive(self, arrays: Arrays) -> tuple[Arrays, Matrix, Matrix]:
        """Load the received extractor into the network; return its arrays, the means and the covariance."""
        body = {name: array for name, array in arrays.items() if name not in (MEANS, COVARIANCE)}
        set_arrays(self.model, body)
        return body, arrays[MEANS].astype(np.float64), arrays[COVARIANCE].astype(np.float64)

    def _frequencies(self, classes: int) -> Matrix:
        """Return π_k (C,), smoothed so that no class has probability 0; uniform for a client without labels."""
        if not self.data.labeled:
            return np.full(classes, 1 / classes)
        counts = np.bincount(self.data.train.y.cpu().numpy(), minlength=classes) / len(self.data.train) + 1e-4
        π: Matrix = counts / counts.sum()
        return π

    def _set_classifier(self, μ: Matrix, Σ: Matrix) -> None:
        _, head = body_and_classifier(self.model)
        (weight, bias) = head.parameters()
        weights, biases = classifier(μ, Σ, self._frequencies(len(μ)), self.hyper.shrinkage)
        with torch.no_grad():
            for parameter, value in zip((weight, bias), (weights, biases), strict=True):
                parameter.copy_(torch.from_numpy(value))

    def _adapt(self, μ: Matrix, Σ: Matrix) -> tuple[Matrix, Matrix, float]:
        """Return the client's adapted Gaussians (μ_k, Σ_k), and β."""
        z = features(body_and_classifier(self.model)[0], self.data.train).cpu().numpy().astype(np.float64)
        y = self.data.train.y.cpu().numpy()
        rng = numpy_generator(self.settings.seed, "folds", self.client_id, self.round)
        β = best_interpolation(z, y, μ, Σ, self._frequencies(len(μ)), self.hyper, rng)
        own_μ, own_Σ = estimate(z, y, μ, self.hyper.ridge)
        return β * own_μ + (1 - β) * μ, β * own_Σ + (1 - β) * Σ, β


def best_interpolation(
    z: Matrix, y: NDArray[np.int64], μ: Matrix, Σ: Matrix, π: Matrix, hyper: PFedFDAHyper, rng: np.random.Generator
) -> float:
    """Return β ∈ [0, 1] with the least cross-validated cross-entropy of the interpolated classifier.

    Returns 0, the global classifier, for a client with fewer examples than folds.
    """
    if len(y) < hyper.folds:
        return 0.0
    fold = folds_of(y, hyper.folds, rng)
    parts: Sequence[tuple[Matrix, Matrix, Matrix, NDArray[np.int64]]] = [
        (*estimate(z[fold != f], y[fold != f], μ, hyper.ridge), z[fold == f], y[fold == f]) for f in range(hyper.folds)
    ]

    def loss(β: float) -> float:
        total = 0.0
        for own_μ, own_Σ, held_z, held_y in parts:
            weights, biases = classifier(β * own_μ + (1 - β) * μ, β * own_Σ + (1 - β) * Σ, π, hyper.shrinkage)
            scores = held_z @ weights.T + biases
            total += float((logsumexp(scores, axis=1) - scores[np.arange(len(held_y)), held_y]).sum())
        return total

    return float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-3}).x)
