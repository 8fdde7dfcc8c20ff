"""Mixtures of Dirichlet-multinomials: likelihood of histograms, and the steps that fit them (Scott, thesis, 3.3).

Shapes: n histograms of C categories, K components, S size bins (a histogram's size m is the sum of its counts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SMALLEST_ALPHA, LARGEST_ALPHA = 1e-6, 1e6
"""Bounds of every α_kj, which otherwise tends to 0 for a category that no client has, to ∞ for equal histograms."""
SMALLEST_PI = 1e-12
"""Least probability of a size bin: a later client may have a size that no client of the cohort has."""
LARGEST_COUNT = 2**53
EMPTY = 1e-3
"""A component with a smaller total weight of clients than this counts as empty."""
SPREAD = 0.5
"""Standard deviation of log α around the largest component's, when an empty component is reinitialised."""


@dataclass(frozen=True)
class Mixture:
    """The distribution of a client's histogram (equation 3.3).

    Attributes:
        tau: τ, weights of the components, (K,).
        pi: Π, probabilities of the size bins in each component, (K, S).
        alpha: A, Dirichlet parameters of each component, (K, C).
        edges: bin b holds the sizes edges[b] to edges[b + 1] − 1, equally likely; (S + 1,), increasing, from 1 on.
    """

    tau: Array
    pi: Array
    alpha: Array
    edges: Counts

    def sample(self, n: int, rng: np.random.Generator) -> Counts:
        """Draw n histograms, (n, C)."""
        components = rng.choice(len(self.tau), size=n, p=self.tau / self.tau.sum())
        histograms = np.zeros((n, self.alpha.shape[1]), np.int64)
        for i, k in enumerate(components):
            b = rng.choice(len(self.edges) - 1, p=self.pi[k] / self.pi[k].sum())
            size = rng.integers(self.edges[b], self.edges[b + 1])
            histograms[i] = rng.multinomial(size, rng.dirichlet(self.alpha[k]))
        return histograms


def size_bins(sizes: Counts, edges: Counts) -> Counts:
    """Return the index of the size bin that holds each size, (n,).

    Raises:
        ValueError: if a size lies outside all bins.
    """
    outside = (sizes < edges[0]) | (sizes >= edges[-1])
    if outside.any():
        raise ValueError(
            f"a size of {sizes[outside][0]} lies outside the bins, which hold {edges[0]} to {edges[-1] - 1}"
        )
    return np.searchsorted(edges, sizes, side="right") - 1


def check_counts(counts: NDArray[np.number]) -> Counts:
    """Check histograms (n, C) and return them as integers.

    Raises:
        ValueError: if the array does not have two dimensions, a count is negative or fractional, or a histogram is
            empty.
    """
    if counts.ndim != 2:
        raise ValueError(f"histograms make a table (n, C), not an array of shape {counts.shape}")
    wrong = ~np.isfinite(counts) | (counts < 0) | (counts != np.floor(counts)) | (counts > LARGEST_COUNT)
    if wrong.any():
        raise ValueError(f"{counts[wrong][0]} is no count; counts are whole numbers ≥ 0")
    if not counts.any(axis=1).all():
        raise ValueError("a histogram has no count above 0")
    return counts.astype(np.int64)


def log_joint(counts: Counts, mixture: Mixture) -> Array:
    """Return log τ_k p(c, m | α_k, π_k) for every histogram and component, (n, K) (equations 3.1 to 3.3)."""
    c, sizes = counts[:, None, :], counts.sum(axis=1)
    α, total = mixture.alpha, mixture.alpha.sum(axis=1)
    multinomial = gammaln(sizes + 1) - gammaln(counts + 1).sum(axis=1)
    polya = gammaln(total) - gammaln(sizes[:, None] + total) + (gammaln(c + α) - gammaln(α)).sum(axis=2)
    bins = size_bins(sizes, mixture.edges)
    with np.errstate(divide="ignore"):  # a component may have weight 0
        weights = np.log(mixture.tau) + np.log(mixture.pi[:, bins]).T
    result: Array = weights - np.log(np.diff(mixture.edges)[bins])[:, None] + multinomial[:, None] + polya
    return result


def log_likelihood(counts: Counts, mixture: Mixture) -> Array:
    """Return log q(c, m) of every histogram, (n,) (equation 3.3)."""
    return log_likelihoods(log_joint(counts, mixture), [len(mixture.tau)])[:, 0]


def log_likelihoods(joint: Array, numbers: Sequence[int]) -> Array:
    """Return log q(c, m) of every histogram under each of M stacked mixtures, (n, M).

    Args:
        joint: result of :func:`log_joint` for the components of all mixtures together, (n, ΣK).
        numbers: the number K of components of each mixture.
    """
    result: Array = np.logaddexp.reduceat(joint, np.cumsum([0, *numbers[:-1]]), axis=1)
    return result


def moments(counts: Counts, components: Counts, k: int, edges: Counts) -> dict[str, Array]:
    """Return the sums of algorithm 5 over histograms, each of which contributes to one component.

    Args:
        counts: the histograms, (n, C).
        components: component k_i of each histogram, (n,).
        k: number of components K.
        edges: edges of the size bins.

    Returns:
        ``sizes`` E (K, S), ``first`` P (K, C), ``second`` Q (K, C).
    """
    chosen = np.eye(k)[components]
    sizes = counts.sum(axis=1)
    shares = counts / sizes[:, None]
    return {"sizes": _by_bin(chosen, sizes, edges), "first": chosen.T @ shares, "second": chosen.T @ shares**2}


def initial(sums: Mapping[str, Array], edges: Counts, noise: float = 0.0) -> Mixture:
    """Return the initial mixture by matching moments (algorithm 5).

    α_0 is the median of (P̄_j − Q̄_j)/(Q̄_j − P̄_j²) over the categories j where both differences are above 0, and C if
    there are none; equation (3.9) uses the first category only. A component that no client chose gets the average of
    the other components' sums.

    Args:
        sums: result of :func:`moments`, possibly with noise.
        edges: edges of the size bins.
        noise: standard deviation of the noise.
    """
    counted = sums["sizes"].sum(axis=1)
    none = counted < EMPTY
    rows = {
        name: np.where(none[:, None], array.sum(axis=0) / max(1, (~none).sum()), array) for name, array in sums.items()
    }
    clients = np.maximum(rows["sizes"].sum(axis=1), EMPTY)[:, None]
    mean, square = (np.maximum(rows[name], 0.0) / clients for name in ("first", "second"))
    k, categories = mean.shape
    totals = np.full(k, float(categories))
    for row in range(k):
        spread, variance = mean[row] - square[row], square[row] - mean[row] ** 2
        sound = (spread > 0) & (variance > 1e-12)
        if sound.any():
            totals[row] = np.median(spread[sound] / variance[sound])
    shares = mean / np.maximum(mean.sum(axis=1), 1e-12)[:, None]
    return Mixture(np.full(k, 1 / k), _probabilities(rows["sizes"], noise), _bounded(totals[:, None] * shares), edges)


def statistics(counts: Counts, mixture: Mixture, numbers: Sequence[int] | None = None) -> dict[str, Array]:
    """Return the sums of algorithm 6 over histograms (n, C), for one mixture or for M stacked ones.

    Args:
        counts: the histograms.
        mixture: the mixture, or the components of all mixtures together.
        numbers: the number of components of each mixture; by default there is one mixture.

    Returns:
        ``weights`` ω (K,), ``sizes`` E (K, S), ``likelihood`` Σ log q (M,), and numerator and denominator of the update
        of α: ``numerator`` α ⊙ u (K, C), ``denominator`` v (K,) (equations 3.13, 3.14; Σ ω a and Σ ω b in A.29). With
        several mixtures K is the number of components of all together.
    """
    numbers = numbers or [len(mixture.tau)]
    joint = log_joint(counts, mixture)
    likelihood = log_likelihoods(joint, numbers)
    ω = np.exp(joint - np.repeat(likelihood, numbers, axis=1))
    sizes, α = counts.sum(axis=1), mixture.alpha
    total = α.sum(axis=1)
    a = α * (digamma(counts[:, None, :] + α) - digamma(α))
    b = digamma(sizes[:, None] + total) - digamma(total)
    return {
        "weights": ω.sum(axis=0),
        "sizes": _by_bin(ω, sizes, mixture.edges),
        "numerator": np.einsum("nk,nkc->kc", ω, a),
        "denominator": (ω * b).sum(axis=0),
        "likelihood": likelihood.sum(axis=0),
    }


def update(mixture: Mixture, sums: Mapping[str, Array], noise: float = 0.0) -> Mixture:
    """Return the next estimate of the mixture (equations 3.17 to 3.19); an empty component keeps its α and Π.

    Args:
        mixture: the last estimate.
        sums: result of :func:`statistics`, possibly with noise, so that sums may be negative.
        noise: standard deviation of the noise.
    """
    ω, b = np.maximum(sums["weights"], 0.0), sums["denominator"]
    moves = (ω > EMPTY) & (b > 0)
    alpha = np.where(moves[:, None], sums["numerator"] / np.where(moves, b, 1.0)[:, None], mixture.alpha)
    pi = np.where((ω > EMPTY)[:, None], _probabilities(sums["sizes"], noise), mixture.pi)
    tau = ω / ω.sum() if ω.any() else mixture.tau
    return Mixture(tau, pi, _bounded(alpha), mixture.edges)


def start_anew(mixture: Mixture, k: int, rng: np.random.Generator) -> Mixture:
    """Return ``mixture`` with component k reinitialised near the largest component.

    Both get half the weight of the largest. The new α is drawn around that of the largest; Π is copied from it.
    """
    largest = int(mixture.tau.argmax())
    tau, pi, alpha = mixture.tau.copy(), mixture.pi.copy(), mixture.alpha.copy()
    tau[[k, largest]] = tau[largest] / 2
    pi[k] = pi[largest]
    alpha[k] = alpha[largest] * np.exp(SPREAD * rng.standard_normal(alpha.shape[1]))
    return Mixture(tau / tau.sum(), pi, _bounded(alpha), mixture.edges)


def _by_bin(weights: Array, sizes: Counts, edges: Counts) -> Array:
    """Sum the weights (n, K) of histograms over each size bin; return (K, S)."""
    total = np.zeros((len(edges) - 1, weights.shape[1]))
    np.add.at(total, size_bins(sizes, edges), weights)
    return total.T


def _probabilities(sums: Array, noise: float) -> Array:
    """Normalise the rows of ``sums`` to 1, with entries of at least about ``SMALLEST_PI``.

    Sums below the noise's standard deviation are raised to it. Otherwise a bin that the noise made negative would rule
    out its sizes, and so decide which component clients of these sizes belong to.
    """
    positive = np.maximum(sums, noise)
    whole = positive.sum(axis=1, keepdims=True)
    shares = np.where(whole > 0, positive / np.where(whole > 0, whole, 1.0), 1 / sums.shape[1])
    shares = np.maximum(shares, SMALLEST_PI)
    result: Array = shares / shares.sum(axis=1, keepdims=True)
    return result


def _bounded(alpha: Array) -> Array:
    return np.clip(alpha, SMALLEST_ALPHA, LARGEST_ALPHA)
