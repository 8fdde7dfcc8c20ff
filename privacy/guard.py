"""A released sum's protection: the bound on what one contributor adds, and the noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.privacy.clipping import clipping_factor
from florilegium.privacy.noise import Kind, draw

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Guard:
    """How the sum ``name`` is protected.

    Attributes:
        kind: Gaussian noise, with a bound in L2 norm; or Laplace noise, with one in L1 norm.
        bound: B, to which each contribution is clipped; infinite where its parts are bounded already.
        scale: σ or b of the noise on the sum; 0: none.
    """

    kind: Kind
    bound: float
    scale: float

    def factor(self, contribution: Array) -> float:
        """Return what scales ``contribution`` down to norm B: 1 where its norm is no larger."""
        return clipping_factor(contribution, self.bound, 2 if self.kind == "gaussian" else 1)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...], shares: int = 1) -> Array:
        """Return one of ``shares`` shares of the sum's noise."""
        return draw(rng, self.kind, self.scale, shape, shares)
