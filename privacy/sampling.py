"""Poisson sampling: every unit takes part independently of all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def poisson_sample(rng: np.random.Generator, units: Sequence[str], rate: float) -> list[str]:
    """Return the units that take part, each independently with probability ``rate``, in their order; maybe none.

    A unit more or less changes nobody else's part. In a sample of a fixed size, another unit would take its place.
    """
    taking_part = rng.random(len(units)) < rate
    return [unit for unit, chosen in zip(units, taking_part, strict=True) if chosen]
