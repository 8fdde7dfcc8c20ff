"""Clients whose histograms follow a mixture of Dirichlet-multinomials (Scott, thesis, chapter 3)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.dirichlet_multinomial import Counts
from florilegium.partitions.features import find_feature, uncovered
from florilegium.partitions.mdm_params import Law, fingerprint, read_law
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import Dataset

log = logging.getLogger("flwr")

Rows = NDArray[np.int64]


class MdmPartitioner(Partitioner):
    """A flwr-datasets partitioner that draws clients' histograms and assigns rows to match them, each row once.

    Clients get their rows one after the other, in random order within each category. If a category has run out, the
    rows that a client still lacks are drawn from the other categories: in proportion to the client's own counts of
    these or, if it has none, to the rows that are left of each.

    Args:
        law: distribution of the histograms.
        num_partitions: number of clients n.
        seed: seed for drawing histograms and rows.
        by: the column that holds each row's category, 0..C−1.

    Raises:
        DataError: if there are too few rows in all.
    """

    def __init__(self, law: Law, num_partitions: int, seed: int | Sequence[int], by: str = "value") -> None:
        super().__init__()
        self._law, self._num_partitions, self._seed, self._by = law, num_partitions, seed, by

    @property
    def num_partitions(self) -> int:
        """Number of clients n."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> HubDataset:
        """Return the rows of client ``partition_id``."""
        return self.dataset.select(self._parts[partition_id])

    @cached_property
    def _parts(self) -> list[Rows]:
        rng = np.random.default_rng(self._seed)
        return deal(np.asarray(self.dataset[self._by]), self._law.draw(self._num_partitions, rng), rng)


def deal(values: Rows, histograms: Counts, rng: np.random.Generator) -> list[Rows]:
    """Assign rows to clients according to their histograms (see :class:`MdmPartitioner`).

    Args:
        values: the category of every row, (rows,).
        histograms: number of rows of each category that each client should get, (n, C).
        rng: the generator.

    Returns:
        The rows of each client.

    Raises:
        DataError: if there are too few rows in all.
    """
    wanted = int(histograms.sum())
    if wanted > len(values):
        raise DataError(
            f"num-clients: the {len(histograms)} clients drawn have {wanted} examples together, but there are "
            f"{len(values)}; use fewer clients, or smaller ones"
        )
    pools = [rng.permutation(np.flatnonzero(values == c)) for c in range(histograms.shape[1])]
    left = np.array([len(pool) for pool in pools])
    parts, short = [], []
    scarce: set[int] = set()
    for client, histogram in enumerate(histograms):
        counts = np.minimum(histogram, left)
        if (lacking := int((histogram - counts).sum())) > 0:
            short.append(client)
            scarce |= set(np.flatnonzero(histogram > counts).tolist())
            counts = counts + _instead(lacking, histogram, left - counts, rng)
        parts.append(np.concatenate([pool[n - count : n] for pool, n, count in zip(pools, left, counts, strict=True)]))
        left = left - counts
    if short:
        log.warning(
            "mdm: the rows of some categories (%s) have run out; %d of %d clients, the first is %d, have others in "
            "their place; use fewer clients for exact histograms",
            ", ".join(map(str, sorted(scarce))), len(short), len(histograms), short[0],
        )  # fmt: skip
    return parts


def _instead(lacking: int, histogram: Counts, left: Counts, rng: np.random.Generator) -> Counts:
    """Draw how many rows of each category replace ``lacking`` rows of a client with ``histogram``.

    ``left`` is the number of rows of each category that are still available, (C,).
    """
    extra = np.zeros_like(left)
    while lacking:
        weights = np.where(left > extra, histogram, 0)
        if not weights.any():
            weights = left - extra
        more = np.minimum(rng.multinomial(lacking, weights / weights.sum()), left - extra)
        extra += more
        lacking -= int(more.sum())
    return extra


def columns(settings: FederationSettings, dataset: Dataset, rows: Rows) -> dict[str, NDArray[np.generic]]:
    """Return the additional column that the partitioner needs for training ``rows``: the category of each row.

    Raises:
        ConfigurationError: if the dataset does not have the feature that ``mdm-params`` counts, or the feature has
            another number of categories.
    """
    law = read_law(settings.mdm_params, settings.samples_per_client)
    feature = find_feature(dataset.spec, law.feature, law.bins)
    if feature.categories != law.categories:
        raise ConfigurationError(
            f"mdm-params: the distribution has {law.categories} categories, '{feature.name}' of '{dataset.spec.name}' "
            f"has {feature.categories}"
        )
    values = feature.values(np.asarray(dataset.train.x[rows]), dataset.train.y[rows])
    if (values < 0).any():
        raise ConfigurationError(uncovered(law.feature, law.bins))
    return {"value": values}


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner for the distribution that key ``mdm-params`` names.

    The seed depends on the distribution, too. So if clients have equal histograms under two distributions, one drawn
    and one listed, they still get different rows.
    """
    law = read_law(settings.mdm_params, settings.samples_per_client)
    return MdmPartitioner(law, settings.num_clients, [seed, int(fingerprint(settings.mdm_params), 16)])
