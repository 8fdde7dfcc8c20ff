"""Weighted k-means with scikit-learn, in a module of its own because importing it takes a second or more."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans

from florilegium.models.clustering import Array


def k_means(points: Array, weights: Array, k: int, restarts: int, rng: np.random.Generator) -> Array:
    """Return cluster centres (k, d), found by k-means++ and then Lloyd's algorithm.

    Args:
        points: (n, d) with n ≥ k.
        weights: (n,), > 0.
        k: number of centres.
        restarts: number of runs, of which the best is returned.
        rng: the generator that seeds the runs.
    """
    seed = int(rng.integers(2**31))
    found = KMeans(k, n_init=restarts, random_state=seed).fit(points, sample_weight=weights)
    return np.asarray(found.cluster_centers_, np.float64)
