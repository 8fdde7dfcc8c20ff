"""k-means in plain arrays: assignments, sums, weighted clustering, and how well clusters agree with classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


def distances(points: Array, centers: Array) -> Array:
    """Return the squared Euclidean distances (n, k) of points (n, d) to centres (k, d)."""
    squares: Array = (points**2).sum(axis=1)[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
    return np.maximum(squares, 0.0)


def nearest(points: Array, centers: Array) -> tuple[Labels, Array]:
    """Return the nearest centre of each point (n,), the first of several, and the squared distance to it (n,)."""
    squares = distances(points, centers)
    labels = squares.argmin(axis=1)
    return labels, squares[np.arange(len(points)), labels]


def sums(points: Array, labels: Labels, k: int) -> tuple[Array, Array]:
    """Return m_j (k, d) and n_j (k,): the sums and counts of the points with each label 0..k-1."""
    chosen = np.zeros((k, len(points)))
    chosen[labels, np.arange(len(points))] = 1.0
    return chosen @ points, chosen.sum(axis=1)


def cost(points: Array, weights: Array, centers: Array) -> float:
    """Return Σ w_i min_j ‖x_i − ν_j‖²."""
    return float((weights * nearest(points, centers)[1]).sum())


def elbow(costs: Sequence[float]) -> int:
    """Return k at the elbow of the costs of 1, 2, … clusters: farthest below the line from the first to the last."""
    y = np.asarray(costs, float)
    scaled = (y - y[-1]) / max(float(y[0] - y[-1]), np.finfo(float).tiny)
    return int((1 - np.linspace(0, 1, len(y)) - scaled).argmax()) + 1


def clustering_accuracy(table: Array) -> float:
    """Return the share of points whose cluster is that of their class, under the best one-to-one matching.

    Args:
        table: how many points each cluster has of each class, (k, C).
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / max(1.0, table.sum()))
