"""Label skew drawn from a Dirichlet distribution: over clients for each class, or over classes for each client."""

from __future__ import annotations

from functools import partial

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import DirichletPartitioner, Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.partitioners.owners import OwnersPartitioner
from florilegium.partitions.settings import FederationSettings

Rows = NDArray[np.int64]

MIN_EXAMPLES = 2
"""A draw that leaves a client with fewer examples is repeated, up to ``ATTEMPTS`` draws in all."""
ATTEMPTS = 10


def class_mix_owners(labels: Rows, n: int, alpha: float, seed: int) -> Rows:
    """Draw each client's class proportions π_i ~ Dirichlet(α, …, α) and return the owner of each row.

    Class c is divided among the clients in proportion to π_ic. Every row belongs to one client, and clients' sizes
    follow from the draws (Scott's thesis, section 4.4.1, as in the authors' code). With a very small α all π_ic of a
    class may be too small to represent; then one of them exceeds all others by orders of magnitude, and a client drawn
    at random gets the whole class.

    Args:
        labels: class of each row, (rows,).
        n: number of clients.
        alpha: α > 0.
        seed: seed of the draws.

    Raises:
        DataError: if some client has fewer than ``MIN_EXAMPLES`` in all of ``ATTEMPTS`` draws.
    """
    rng = np.random.default_rng(seed)
    classes = np.unique(labels)
    for _ in range(ATTEMPTS):
        π = rng.dirichlet(np.full(len(classes), alpha), size=n)
        owner = np.empty(len(labels), dtype=np.int64)
        for c, mix in zip(classes, π.T, strict=True):
            # Below the normal numbers, PyTorch may have told the processor to compute with 0 instead.
            if mix.max() < np.finfo(np.float64).tiny:
                mix[:] = 0.0
                mix[rng.integers(len(mix))] = 1.0
            rows = rng.permutation(np.flatnonzero(labels == c))
            last = np.round(np.cumsum(mix / mix.sum()) * len(rows)).astype(np.int64)
            owner[rows] = np.searchsorted(last, np.arange(len(rows)), side="right")
        if np.bincount(owner, minlength=n).min() >= MIN_EXAMPLES:
            return owner
    raise DataError(
        f"alpha: with {alpha:g} and {n} clients some client got fewer than {MIN_EXAMPLES} "
        f"examples in each of {ATTEMPTS} draws. Use fewer clients or a larger alpha."
    )


class _Dirichlet(DirichletPartitioner):
    """flwr-datasets' partitioner, but with an error where it would divide by 0 and give the last client all rows."""

    def _determine_partition_id_to_indices_if_needed(self) -> None:
        try:
            with np.errstate(invalid="raise"):
                super()._determine_partition_id_to_indices_if_needed()
        except FloatingPointError as error:
            raise DataError(
                "balanced: all clients to which a class would go already have their share of the examples; use a "
                "larger alpha, or balanced = false"
            ) from error


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner for concentration α = ``alpha``.

    With ``dirichlet-over = "clients"`` (Yurochkin et al. 2019) it is flwr-datasets' ``DirichletPartitioner``; if
    ``balanced``, a client that already has its share of examples receives no more. With ``"classes"`` the
    owners are those of :func:`class_mix_owners`.
    """
    if settings.dirichlet_over == "classes":
        owners = partial(class_mix_owners, n=settings.num_clients, alpha=settings.alpha, seed=seed)
        return OwnersPartitioner(settings.num_clients, owners)
    return _Dirichlet(
        num_partitions=settings.num_clients,
        partition_by="label",
        alpha=settings.alpha,
        min_partition_size=MIN_EXAMPLES,
        self_balancing=settings.balanced,
        seed=seed,
    )
