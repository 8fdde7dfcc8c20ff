"""Protection of a released sum: the clipping bound of each contribution, and the noise on the sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilegium.privacy.clipping import clipping_factor
from florilegium.privacy.noise import Kind, draw

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Guard:
    """How one released sum is protected.

    Attributes:
        kind: Gaussian noise, with a clipping bound in L2 norm; or Laplace noise, with a clipping bound in L1 norm.
        bound: B, the norm to which each contribution is clipped; infinite if contributions are bounded already.
        scale: scale of the noise on the sum, σ (Gaussian) or b (Laplace); 0: no noise.
    """

    kind: Kind
    bound: float
    scale: float

    def factor(self, contribution: Array) -> float:
        """Return the factor that scales ``contribution`` down to norm B; 1 if its norm is no larger."""
        return clipping_factor(contribution, self.bound, 2 if self.kind == "gaussian" else 1)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...], shares: int = 1) -> Array:
        """Draw one of ``shares`` shares of the noise on the sum; 1: all of it."""
        return draw(rng, self.kind, self.scale, shape, shares)
