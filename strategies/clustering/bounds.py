"""Clipping bounds on what a client sends, for client-level privacy of clusterings (Scott, thesis, D.7.4).

Bounds that are not configured are derived from the server's data and the public size m of a typical client, never from
the clients. A hundred artificial clients of m points each are drawn from the server's points.

- Step 1, outer products: the largest norm that the artificial clients would send.
- Step 2, weights: m, the sum of the weights of m points.
- Step 3, cluster means: √min(k, m) times a typical norm of the artificial clients' means.
- Step 3, cluster counts (0 or 1 each): min(k, m).

Means and counts are scaled by the same factor, so that too small a bound reduces a client's weight, but moves no mean.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.hyper.clustering import KMeansHyper
from florilegium.models.clustering import Array, nearest, sums
from florilegium.models.kmeans import k_means

_CLIENTS = 100


def client_bounds(hyper: KMeansHyper, points: Array, k: int, size: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the bound on a client's contribution to every sum, by the sum's name.

    Args:
        hyper: keys ``kmeans.clip-*``; a bound that is 0 is derived from the server's data.
        points: the server's points, (s, d).
        k: number of clusters.
        size: public number of points m of a typical client, ≥ 1.
        rng: generator that draws the artificial clients.
    """
    centers = k_means(points, np.ones(len(points)), k, 1, rng)
    upper = np.triu_indices(points.shape[1])
    outer, squares = [], []
    for _ in range(_CLIENTS):
        drawn = points[rng.integers(len(points), size=size)]
        totals, counts = sums(drawn, nearest(drawn, centers)[0], k)
        means = totals[counts > 0] / counts[counts > 0, None]
        outer.append(np.linalg.norm((drawn.T @ drawn)[upper]))
        squares.append((means**2).sum(axis=1).mean())
    clusters = min(k, size)
    return {
        "outer": hyper.clip_outer or float(max(outer)),
        "weights": hyper.clip_weights or float(size),
        "sums": hyper.clip_sums or float(np.sqrt(clusters * np.median(squares))),
        "counts": hyper.clip_counts or float(clusters),
    }
