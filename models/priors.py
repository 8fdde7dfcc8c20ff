"""Class priors: of labels, smoothed, and of inputs without labels, by expectation maximisation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 1e-6
"""Classes that are rarer count as absent, and as so frequent in a logarithm."""


def smoothed(counts: Tensor, prior: NDArray[np.float64], added: float) -> NDArray[np.float64]:
    """Return class frequencies (C,) of examples and of further ones that have a class prior.

    With them a class that a client lacks has the same ratio to the prior as any other that it lacks, also one that
    nobody has.

    Args:
        counts: number of examples of each class, (C,).
        prior: the prior of the further examples, (C,).
        added: their number per class.
    """
    counted = counts.double().cpu().numpy() + added * len(prior) * prior
    total = counted.sum()
    return counted / total if total else prior


def estimated(logits: Tensor, prior: NDArray[np.float64], iterations: int) -> NDArray[np.float64]:
    """Return the class prior of inputs whose labels are not known, (C,): Saerens, Latinne, Decaestecker 2002, eq. 2.8.

    Expectation maximisation of the likelihood of the inputs, of a classifier that was trained where the classes had
    another prior: the posteriors under the present estimate are averaged over the inputs, again and again.

    Args:
        logits: the classifier's outputs, (n, C).
        prior: the classes' prior where the classifier was trained, (C,); classes that it lacks stay absent.
        iterations: the most steps; they end where no entry changes by 1e-8.
    """
    if not len(logits):
        return prior
    posterior, known = logits.double().softmax(dim=1).cpu().numpy(), prior > LEAST
    likelihood = np.where(known, posterior / prior.clip(LEAST), 0.0)  # up to a factor of each input
    found = np.where(known, prior, 0.0)
    for _ in range(iterations):
        joint = likelihood * found
        after: NDArray[np.float64] = (joint / joint.sum(axis=1, keepdims=True)).mean(axis=0)
        if np.abs(after - found).max() < 1e-8:
            return after
        found = after
    return found


def shift(own: NDArray[np.float64], trained: NDArray[np.float64]) -> Tensor:
    """Return what a class prior ``own`` instead of ``trained`` adds to logits, (C,): the logarithm of their ratio."""
    return torch.from_numpy(np.log(own.clip(LEAST)) - np.log(trained.clip(LEAST)))
