"""Label skew drawn from a Dirichlet distribution (Hsu et al. 2019; Yurochkin et al. 2019)."""

from __future__ import annotations

from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import DirichletPartitioner, Partitioner

from partitions.settings import FederationSettings

MIN_EXAMPLES = 2
"""Draws that leave a client with fewer examples are repeated, ten times at most."""


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``DirichletPartitioner`` with concentration α = ``alpha``.

    With ``balanced``, a client that already has its share of examples receives no more, so sizes are nearly equal.
    """
    return DirichletPartitioner(
        num_partitions=settings.num_clients,
        partition_by="label",
        alpha=settings.alpha,
        min_partition_size=MIN_EXAMPLES,
        self_balancing=settings.balanced,
        seed=seed,
    )
