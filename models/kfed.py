"""k-FED: one-shot clustering of local cluster centres (Dennis, Li and Smith 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans

from florilegium.models.clustering import Array, distances, nearest, sums
from florilegium.models.kmeans import k_means


def local_centers(points: Array, k: int, restarts: int, rng: np.random.Generator) -> Array:
    """Return a client's own centres (k, d) (algorithm 1, after Awasthi and Sheffet 2012).

    First, k-means clusters the points' projection onto their first k singular vectors. Then each cluster's mean is
    taken over the points at least three times closer to its centre than to any other, or over all its points if fewer
    than half are that close. Lloyd's algorithm starts from these means.

    Args:
        points: (n, d), n ≥ k.
        k: number of centres, k^(z) in the paper.
        restarts: number of k-means runs on the projection, of which the best is used.
        rng: the generator.
    """
    _, _, basis = np.linalg.svd(points, full_matrices=False)
    projected = points @ basis[:k].T
    found = k_means(projected, np.ones(len(points)), k, restarts, rng)
    squares = np.sqrt(distances(projected, found))
    labels, own = squares.argmin(axis=1), squares.min(axis=1)
    others = squares.copy()
    others[np.arange(len(points)), labels] = np.inf
    clear = own <= others.min(axis=1) / 3
    totals, counts = sums(points[clear], labels[clear], k)
    whole, sizes = sums(points, labels, k)
    # The mean of a few points is mostly noise, and Lloyd's algorithm would never assign other points to it.
    few = counts < sizes / 2
    totals[few], counts[few] = whole[few], sizes[few]
    start = totals / np.maximum(counts, 1)[:, None]
    return np.asarray(KMeans(k, init=start, n_init=1).fit(points).cluster_centers_, np.float64)


def merge_centers(local: Sequence[Array], k: int, rng: np.random.Generator) -> Array:
    """Cluster all clients' local centres, (k^(z), d) each, into k global centres (k, d) (algorithm 2).

    Starting from the local centres of a random client, the local centre farthest from those chosen is added until there
    are k. Every local centre is then assigned to the nearest chosen one; the group means are the global centres.
    """
    everything = np.concatenate(local)
    chosen = local[int(rng.integers(len(local)))][:k]
    while len(chosen) < k:
        farthest = nearest(everything, chosen)[1].argmax()
        chosen = np.vstack([chosen, everything[farthest]])
    totals, counts = sums(everything, nearest(everything, chosen)[0], k)
    return np.where(counts[:, None] > 0, totals / np.maximum(counts, 1)[:, None], chosen)
