"""k-FED: one-shot clustering of local cluster centres (Dennis, Li and Smith 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans

from florilegium.models.clustering import Array, distances, nearest, sums
from florilegium.models.kmeans import k_means


def local_centers(points: Array, k: int, restarts: int, rng: np.random.Generator) -> Array:
    """Return a client's own centres (k, d) (algorithm 1, after Awasthi and Sheffet 2012).

    k-means of the points' projection to their first k singular vectors; the means of the points that lie three times
    closer to one centre than to any other, or of all its points where less than half are that close; Lloyd's algorithm
    from there.

    Args:
        points: (n, d), n ≥ k.
        k: number of centres, k^(z) in the paper.
        restarts: of the k-means.
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
    # The mean of a few clear points is mostly noise, and no other point would ever join it.
    few = counts < sizes / 2
    totals[few], counts[few] = whole[few], sizes[few]
    start = totals / np.maximum(counts, 1)[:, None]
    return np.asarray(KMeans(k, init=start, n_init=1).fit(points).cluster_centers_, np.float64)


def merge_centers(local: Sequence[Array], k: int, rng: np.random.Generator) -> Array:
    """Return the centres (k, d) of all clients' local centres, (k^(z), d) each (algorithm 2).

    From those of one client, drawn at random, the farthest of all others is added until there are k; each local centre
    goes to the nearest of these, and the mean of those that went together is a centre.
    """
    everything = np.concatenate(local)
    chosen = local[int(rng.integers(len(local)))][:k]
    while len(chosen) < k:
        farthest = nearest(everything, chosen)[1].argmax()
        chosen = np.vstack([chosen, everything[farthest]])
    totals, counts = sums(everything, nearest(everything, chosen)[0], k)
    return np.where(counts[:, None] > 0, totals / np.maximum(counts, 1)[:, None], chosen)
