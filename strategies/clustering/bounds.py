"""Bounds on what a client sends, where one client more or less must make no difference (Scott, thesis, D.7.4).

Bounds that are no keys of the configuration are taken from the server's data and the public size m of a usual client,
never from the clients. A hundred clients of m points are drawn from the server's. What is sent in step 1 is bounded by
the largest norm of what these would send; in step 2, m points have weights of sum m; in step 3, k clusters have k
means, the norm of each being typically that of the drawn ones, and k contributions, at most m of either. Sums and
contributions are scaled down together, so that a bound that is too small makes a client count less, but moves no mean.
"""

from __future__ import annotations

import numpy as np

from florilegium.clients.hyper.clustering import KMeansHyper
from florilegium.models.clustering import Array, nearest, sums
from florilegium.models.kmeans import k_means

_CLIENTS = 100


def client_bounds(hyper: KMeansHyper, points: Array, k: int, size: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the bound of every sum, by its name.

    Args:
        hyper: the keys ``kmeans.clip-*``; 0 leaves a bound to the server's data.
        points: the server's points, (s, d).
        k: number of clusters.
        size: number of points of a usual client, ≥ 1, public.
        rng: the generator of the drawn clients.
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
