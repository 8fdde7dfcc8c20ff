"""Sphere packing: centres that depend on the range of the data alone (Su et al. 2017; Scott, thesis, D.7.3)."""

from __future__ import annotations

import numpy as np

from florilegium.models.clustering import Array

_ATTEMPTS = 1000
_TOLERANCE = 1e-3


def sphere_packing(radius: float, d: int, k: int, rng: np.random.Generator) -> Array:
    """Return k centres (k, d) in [−Δ, Δ]^d, far from its corners and from each other.

    A distance a is feasible if k centres can be drawn, in 1,000 attempts each, at least a away from the nearest corner
    and at least 2a from each other. The largest feasible a is found by bisection; its centres are returned.

    Args:
        radius: Δ > 0, half the side of the cube: the largest coordinate of the data.
        d, k: dimension and number of centres.
        rng: the generator of the attempts.
    """
    low, high = 0.0, radius * np.sqrt(d)
    found = _draw(0.0, radius, d, k, rng)
    assert found is not None  # a distance of 0 is always feasible
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        drawn = _draw(middle, radius, d, k, rng)
        if drawn is None:
            high = middle
        else:
            low, found = middle, drawn
    return found


def _draw(a: float, radius: float, d: int, k: int, rng: np.random.Generator) -> Array | None:
    """Draw k centres at distance ``a``, as :func:`sphere_packing` describes; return None if that fails."""
    centers = np.empty((0, d))
    for _ in range(k):
        candidates = rng.uniform(-radius, radius, size=(_ATTEMPTS, d))
        fits = np.linalg.norm(radius - np.abs(candidates), axis=1) >= a
        gaps = np.linalg.norm(candidates[:, None] - centers[None], axis=2)
        fits &= (gaps >= 2 * a).all(axis=1)
        if not fits.any():
            return None
        centers = np.vstack([centers, candidates[fits.argmax()]])
    return centers
