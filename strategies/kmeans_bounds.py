"""Bounds on what a client sends, where one client more or less must make no difference (Scott, thesis, D.7.4).

A bound that is no key of the configuration is taken from the server's data, which cost no privacy: a hundred clients of
the median size are drawn from them, and the bound is the largest norm of what these would send.
"""

from __future__ import annotations

import numpy as np

from clients.hyper import KMeansHyper
from models.clustering import Array, k_means, nearest, sums

_CLIENTS = 100


def client_bounds(hyper: KMeansHyper, points: Array, size: int, rng: np.random.Generator) -> dict[str, float]:
    """Return the bound of every sum, by its name.

    Args:
        hyper: the keys ``kmeans.clip-*``; 0 leaves a bound to the server's data.
        points: the server's points, (s, d).
        size: the median number of points of a client, ≥ 1.
        rng: the generator of the drawn clients.
    """
    centers = k_means(points, np.ones(len(points)), hyper.k, 1, rng)
    upper = np.triu_indices(points.shape[1])
    norms = []
    for _ in range(_CLIENTS):
        drawn = points[rng.integers(len(points), size=size)]
        totals, counts = sums(drawn, nearest(drawn, centers)[0], hyper.k)
        means = totals / np.maximum(counts, 1)[:, None]
        outer = np.linalg.norm((drawn.T @ drawn)[upper])
        norms.append([outer, size, np.linalg.norm(means), (counts > 0).sum()])
    largest = np.max(norms, axis=0)
    keys = {"outer": hyper.clip_outer, "weights": hyper.clip_weights, "sums": hyper.clip_sums,
            "counts": hyper.clip_counts}  # fmt: skip
    return {name: key or float(bound) for (name, key), bound in zip(keys.items(), largest, strict=True)}
