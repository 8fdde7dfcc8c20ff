"""Noise on sums: added in full where the sum is formed, or as one share by each contributor.

The shares of n contributors add up to the full noise. Gaussian shares have variance σ²/n each. A Laplace variable is
the difference of two exponential variables, each a sum of n gamma variables of shape 1/n (Kotz et al. 2001, section
2.4), so that a Laplace share is the difference of two gamma variables.
"""

from __future__ import annotations

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


def secret_generator() -> np.random.Generator:
    """Return a generator with a secret random seed: anyone who knew the seed could subtract the noise."""
    return np.random.default_rng(secrets.randbits(128))
