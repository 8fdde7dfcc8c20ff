"""Noise on sums: all of it where the sum is formed, or a share from everyone who contributes to it.

Shares of n contributors add up to the stated noise: Gaussian ones of variance σ²/n each; a Laplace variable is the
difference of two exponential ones, which are sums of n gamma variables of shape 1/n (Kotz et al. 2001, section 2.4).
"""

from __future__ import annotations

import secrets
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["gaussian", "laplace"]
Array = NDArray[np.float64]


def draw(rng: np.random.Generator, kind: Kind, scale: float, shape: tuple[int, ...], shares: int = 1) -> Array:
    """Return one of ``shares`` shares of noise, of ``shape``.

    Args:
        rng: the generator; on devices one of :func:`secret_generator`.
        kind: "gaussian" or "laplace".
        scale: standard deviation σ of the Gaussian, or scale b of the Laplace noise that all shares make together.
        shape: the sum's shape, every entry of which gets noise of its own.
        shares: how many contributors there are; 1: all of the noise.
    """
    if kind == "gaussian":
        return rng.normal(scale=scale / np.sqrt(shares), size=shape)
    return rng.gamma(1 / shares, scale, shape) - rng.gamma(1 / shares, scale, shape)


def secret_generator() -> np.random.Generator:
    """Return a generator that nobody can repeat: whoever knows the seed of noise can take the noise away again."""
    return np.random.default_rng(secrets.randbits(128))
