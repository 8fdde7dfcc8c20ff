"""The EM of Scott's thesis, algorithms 5 and 6, written anew over all clients, one number at a time."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma
from scipy.stats import dirichlet_multinomial

from florilegium.partitions.dirichlet_multinomial import Mixture


def start(counts: np.ndarray, components: np.ndarray, k: int, edges: np.ndarray) -> Mixture:
    """Return what algorithm 5 starts from, α_0 by the median over categories; every component has been chosen."""
    pi, alpha = np.zeros((k, len(edges) - 1)), np.zeros((k, counts.shape[1]))
    for j in range(k):
        own = counts[components == j]
        shares = own / own.sum(axis=1, keepdims=True)
        for size in own.sum(axis=1):
            pi[j, size - 1] += 1 / len(own)
        mean, square = shares.mean(axis=0), (shares**2).mean(axis=0)
        alpha[j] = np.median((mean - square) / (square - mean**2)) * mean
    return Mixture(np.full(k, 1 / k), pi, alpha, edges)


def em(counts: np.ndarray, m: Mixture) -> Mixture:
    """A step of algorithm 6 over all clients, one number at a time."""
    n, k, c = len(counts), len(m.tau), counts.shape[1]
    ω = np.zeros((n, k))
    for i, histogram in enumerate(counts):
        size = int(histogram.sum())
        for j in range(k):
            pmf = np.exp(dirichlet_multinomial.logpmf(histogram, m.alpha[j], size))
            ω[i, j] = m.tau[j] * m.pi[j, size - 1] * pmf
        ω[i] /= ω[i].sum()
    tau, pi, alpha = ω.mean(axis=0), np.zeros_like(m.pi), np.zeros_like(m.alpha)
    for j in range(k):
        down = sum(
            ω[i, j] * (digamma(counts[i].sum() + m.alpha[j].sum()) - digamma(m.alpha[j].sum())) for i in range(n)
        )
        for s in range(m.pi.shape[1]):
            pi[j, s] = ω[counts.sum(axis=1) == s + 1, j].sum() / ω[:, j].sum()
        for value in range(c):
            up = sum(
                ω[i, j] * (digamma(counts[i, value] + m.alpha[j, value]) - digamma(m.alpha[j, value])) for i in range(n)
            )
            alpha[j, value] = m.alpha[j, value] * up / down
    return Mixture(tau, pi, alpha, m.edges)
