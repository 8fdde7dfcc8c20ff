"""Feature skew: identically distributed clients, each with Gaussian noise of its own strength (Li et al. 2022)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.seeds import entropy
from florilegium.partitions.partitioners.iid import make
from florilegium.partitions.partitioners.keys import NoiseKeys
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Noise, Rows

__all__ = ["add_noise", "make", "views"]


def views(settings: FederationSettings) -> dict[str, Noise]:
    """Return the clients' noise: client i of 1..n has the standard deviation σ·i/n."""
    n = settings.num_clients
    levels = settings.own_keys(NoiseKeys).sigma * np.arange(1, n + 1) / n
    return {"noise": Noise(levels.astype(np.float32), entropy(settings.seed, "federation", "noise") % 2**63)}


def add_noise(images: NDArray[Any], level: float, seed: int, rows: Rows, split: int) -> NDArray[np.float32]:
    """Add noise to decoded images (n, height, width, channels); the result is not clipped.

    An image's noise depends on nothing but seed, split and row, so that it is the same in every round.

    Args:
        images: the images.
        level: standard deviation, in units of a pixel's value.
        seed: seed of the noise, 0..2⁶³ − 1.
        rows: row of each image in its split, (n,).
        split: 0 for the training split, 1 for the test split.
    """
    noisy = images.astype(np.float32)
    for image, row in zip(noisy, rows.tolist(), strict=True):
        # Philox is made for streams with neighbouring keys, and cheaper to start than NumPy's default.
        generator = np.random.Generator(np.random.Philox(key=np.array([seed, 2 * row + split], np.uint64)))
        image += level * generator.standard_normal(image.shape, np.float32)
    return noisy
