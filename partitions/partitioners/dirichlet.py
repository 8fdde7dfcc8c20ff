"""Label skew drawn from a Dirichlet distribution: over clients for each class, or over classes for each client."""

from __future__ import annotations

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import DirichletPartitioner, Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.settings import FederationSettings

MIN_EXAMPLES = 2
"""A draw that leaves a client with fewer examples is repeated, up to ``ATTEMPTS`` draws in all."""
ATTEMPTS = 10


class ClassMixPartitioner(Partitioner):
    """A flwr-datasets partitioner that draws each client's class proportions π_i ~ Dirichlet(α, …, α).

    Class c is divided among the clients in proportion to π_ic. Every row belongs to one client, and clients' sizes
    follow from the draws (Scott's thesis, section 4.4.1, as in the authors' code). With a very small α all π_ic of a
    class may be too small to represent; then one of them exceeds all others by orders of magnitude, and a client drawn
    at random gets the whole class.

    Args:
        num_partitions: number of clients n.
        alpha: α > 0.
        seed: seed of the draws.

    Raises:
        DataError: if some client has fewer than ``MIN_EXAMPLES`` in all of ``ATTEMPTS`` draws.
    """

    def __init__(self, num_partitions: int, alpha: float, seed: int) -> None:
        super().__init__()
        self._num_partitions = num_partitions
        self._alpha = alpha
        self._rng = np.random.default_rng(seed)
        self._rows: list[NDArray[np.int64]] | None = None

    @property
    def num_partitions(self) -> int:
        """Number of clients n."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> HubDataset:
        """Return the rows of client ``partition_id``."""
        if self._rows is None:
            self._rows = self._share_out()
        return self.dataset.select(self._rows[partition_id])

    def _share_out(self) -> list[NDArray[np.int64]]:
        labels = np.asarray(self.dataset["label"])
        classes = np.unique(labels)
        for _ in range(ATTEMPTS):
            π = self._rng.dirichlet(np.full(len(classes), self._alpha), size=self._num_partitions)
            owner = np.empty(len(labels), dtype=np.int64)
            for c, mix in zip(classes, π.T, strict=True):
                if not mix.any():
                    mix[self._rng.integers(len(mix))] = 1.0
                rows = self._rng.permutation(np.flatnonzero(labels == c))
                last = np.round(np.cumsum(mix / mix.sum()) * len(rows)).astype(np.int64)
                owner[rows] = np.searchsorted(last, np.arange(len(rows)), side="right")
            sizes = np.bincount(owner, minlength=self._num_partitions)
            if sizes.min() >= MIN_EXAMPLES:
                return np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
        raise DataError(
            f"alpha: with {self._alpha:g} and {self._num_partitions} clients some client got fewer than {MIN_EXAMPLES} "
            f"examples in each of {ATTEMPTS} draws. Use fewer clients or a larger alpha."
        )


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner for concentration α = ``alpha``.

    With ``dirichlet-over = "clients"`` (Yurochkin et al. 2019) it is flwr-datasets' ``DirichletPartitioner``; if
    ``balanced``, a client that already has its share of examples receives no more. With ``"classes"`` it is
    :class:`ClassMixPartitioner`.
    """
    if settings.dirichlet_over == "classes":
        return ClassMixPartitioner(settings.num_clients, settings.alpha, seed)
    return DirichletPartitioner(
        num_partitions=settings.num_clients,
        partition_by="label",
        alpha=settings.alpha,
        min_partition_size=MIN_EXAMPLES,
        self_balancing=settings.balanced,
        seed=seed,
    )
