"""k-means on arrays: assignments, sums, weighted cost, and how well clusters agree with classes."""

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
    """Return the index of each point's nearest centre, (n,), and the squared distance to it, (n,).

    If several centres are equally near, the first one is taken.
    """
    squares = distances(points, centers)
    labels = squares.argmin(axis=1)
    return labels, squares[np.arange(len(points)), labels]


def sums(points: Array, labels: Labels, k: int) -> tuple[Array, Array]:
    """Return m_j (k, d) and n_j (k,): the sums and counts of the points with each label 0..k-1."""
    chosen = np.zeros((k, len(points)))
    chosen[labels, np.arange(len(points))] = 1.0
    return chosen @ points, chosen.sum(axis=1)


def cost(points: Array, weights: Array, centers: Array) -> float:
    """Return the weighted k-means cost Σ w_i min_j ‖x_i − ν_j‖² of points x (n, d) and centres ν (k, d)."""
    return float((weights * nearest(points, centers)[1]).sum())


def elbow(costs: Sequence[float]) -> int:
    """Return the number of clusters k at the elbow of ``costs``, the k-means costs of 1, 2, … clusters.

    The elbow is the cost farthest below the straight line from the first to the last cost.
    """
    y = np.asarray(costs, float)
    scaled = (y - y[-1]) / max(float(y[0] - y[-1]), np.finfo(float).tiny)
    return int((1 - np.linspace(0, 1, len(y)) - scaled).argmax()) + 1


def clustering_accuracy(table: Array) -> float:
    """Return the share of points in the cluster of their class, under the best one-to-one matching of the two.

    Args:
        table: number of points of each class in each cluster, (k, C).
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / max(1.0, table.sum()))
