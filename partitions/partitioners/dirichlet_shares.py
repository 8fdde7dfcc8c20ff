"""Divide each class among clients in Dirichlet proportions, with a balance condition and a smallest client.

NIID-Bench, PFLlib and extended Dirichlet do this. Classes are divided one after the other, and a client that already
holds the mean number of rows gets none of the later ones. The draw is repeated until no client is too small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError

Rows = NDArray[np.int64]

ATTEMPTS = 2000
"""Draws after which the search for clients that are all large enough ends."""


def dirichlet_counts(
    sizes: Rows, owners: Sequence[Rows], n: int, alpha: float, least: int, rng: np.random.Generator, table: str
) -> Rows:
    """Draw how many rows of each class each client gets.

    A class is divided in proportions p ~ Dir(α, …, α) over those of its owners that hold fewer rows than the mean of
    all clients. This is the same distribution as p over all clients, set to 0 for the others and rescaled. If all
    owners of a class hold as many as the mean, it is divided among all of them.

    Args:
        sizes: number of rows of each class, (classes,).
        owners: the clients that may hold each class, at least one for each.
        n: number of clients.
        alpha: α > 0.
        least: smallest number of rows of a client.
        rng: the generator.
        table: configuration table of the keys ``alpha`` and ``min-examples``, for error messages.

    Returns:
        Rows of each class and client, (classes, n).

    Raises:
        DataError: if some client has fewer than ``least`` rows in all of ``ATTEMPTS`` draws.
    """
    mean = sizes.sum() / n
    for _ in range(ATTEMPTS):
        counts = np.zeros((len(sizes), n), np.int64)
        for c, (size, own) in enumerate(zip(sizes, owners, strict=True)):
            below = own[counts.sum(axis=0)[own] < mean]
            takers = below if len(below) else own
            counts[c, takers] = cut(size, rng.dirichlet(np.full(len(takers), alpha)))
        if counts.sum(axis=0).min() >= least:
            return counts
    raise DataError(
        f"{table}.alpha: with {alpha:g} and {n} clients some client got fewer than {least} examples in each of "
        f"{ATTEMPTS} draws. Use fewer clients, a larger alpha or a smaller {table}.min-examples."
    )


def cut(size: int | np.int64, proportions: NDArray[np.float64]) -> Rows:
    """Return the parts of ``size`` rows in given proportions; their ends are rounded down, the last takes the rest."""
    ends = np.floor(np.cumsum(proportions) * size).astype(np.int64)
    ends[-1] = size
    return np.diff(ends, prepend=0)
