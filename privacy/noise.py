"""Noise on sums: added in full where the sum is formed, or as one share by each contributor.

The shares of n contributors add up to the full noise. Gaussian shares have variance σ²/n each. A Laplace variable is
the difference of two exponential variables, each a sum of n gamma variables of shape 1/n (Kotz et al. 2001, section
2.4), so that a Laplace share is the difference of two gamma variables.
"""

from __future__ import annotations

import math
import secrets
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["gaussian", "laplace"]
Array = NDArray[np.float64]


def draw(rng: np.random.Generator, kind: Kind, scale: float, shape: tuple[int, ...], shares: int = 1) -> Array:
    """Draw one of ``shares`` shares of the noise on a sum.

    Args:
        rng: the generator; on real devices one from :func:`secret_generator`.
        kind: "gaussian" or "laplace".
        scale: standard deviation σ of the Gaussian noise, or scale b of the Laplace noise, of all shares together.
        shape: shape of the sum; every entry gets independent noise.
        shares: number of contributors; 1: the full noise.
    """
    if kind == "gaussian":
        return rng.normal(scale=scale / np.sqrt(shares), size=shape)
    return rng.gamma(1 / shares, scale, shape) - rng.gamma(1 / shares, scale, shape)


def draw_discrete(rng: np.random.Generator, scale: float, size: int) -> NDArray[np.int64]:
    """Draw ``size`` integers from the discrete Gaussian distribution: P(x) ∝ exp(−x²/(2σ²)).

    By rejection from the discrete Laplace distribution (Canonne, Kamath, Steinke, *The Discrete Gaussian for
    Differential Privacy*, NeurIPS 2020, algorithms 2 and 3); probabilities are exact to 2⁻⁵³.

    Args:
        rng: the generator.
        scale: σ > 0.
        size: number of draws.
    """
    drawn, missing = [np.zeros(0, np.int64)], size
    t = int(scale) + 1
    while missing > 0:
        count = 2 * missing + 64
        u = rng.integers(t, size=count)
        u = u[rng.random(count) < np.exp(-u / t)]
        x = u + t * (rng.geometric(-np.expm1(-1.0), len(u)) - 1)
        negative = rng.random(len(x)) < 0.5
        y = np.where(negative, -x, x)[~(negative & (x == 0))]
        y = y[rng.random(len(y)) < np.exp(-((np.abs(y) - scale**2 / t) ** 2) / (2 * scale**2))]
        drawn.append(y[:missing])
        missing -= len(drawn[-1])
    return np.concatenate(drawn)


def colluding(parties: int, share: float) -> int:
    """Return how many of a secure sum's ``parties`` may collude with the server, if this share of them may."""
    return math.ceil(share * parties - 1e-9)


def least_honest(parties: int, colluding_share: float, vanishing_share: float) -> int:
    """Return how many parties add noise that the server does not know, if as many collude and vanish as may."""
    return parties - colluding(parties, colluding_share) - int(vanishing_share * parties + 1e-9)


def secret_generator() -> np.random.Generator:
    """Return a generator with a secret random seed: anyone who knew the seed could subtract the noise."""
    return np.random.default_rng(secrets.randbits(128))
