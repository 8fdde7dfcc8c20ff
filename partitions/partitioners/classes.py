"""Clients that hold only S of the C classes, as in papers on personalised learning.

``class-assignment = "random"`` (PPFE, FLowDUP, FedGTST): each client draws its S classes at random.
``class-assignment = "even"`` (PeFLL, pFedHN): every class is assigned to the same number of clients.
``class-assignment = "shards"`` (LG-FedAvg's and FedRep's code): classes are cut into shards of equal number, which are
shuffled; a client of S shards can have several of one class, and therefore fewer than S classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.settings import FederationSettings, check_classes, class_range

Rows = NDArray[np.int64]


class ClassPartitioner(Partitioner):
    """A flwr-datasets partitioner that gives every partition samples of S classes only.

    Args:
        num_partitions: number of clients n.
        classes_per_partition: smallest and largest S; each client draws its own between them.
        samples_per_partition: m, samples per client, m/S of each of its classes or shards (the first ones take the
            remainder). Clients share no samples until a class runs out; that class is then used again from the start,
            and no client gets a sample twice. 0 divides each class among the clients that own it.
        assignment: "random", "even" or "shards".
        seed: seed of the draws.

    Raises:
        DataError: if S exceeds the number of classes or samples, or a client needs more samples than a class has.
    """

    def __init__(
        self,
        num_partitions: int,
        classes_per_partition: tuple[int, int],
        samples_per_partition: int,
        assignment: Literal["random", "even", "shards"],
        seed: int,
    ) -> None:
        super().__init__()
        self._num_partitions = num_partitions
        self._low, self._high = classes_per_partition
        self._samples = samples_per_partition
        self._assignment = assignment
        self._rng = np.random.default_rng(seed)
        self._rows: list[Rows] | None = None

    @property
    def num_partitions(self) -> int:
        """Number of clients n."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> HubDataset:
        """Return the rows of client ``partition_id``."""
        if self._rows is None:
            self._rows = self._deal()
        return self.dataset.select(self._rows[partition_id])

    def _deal(self) -> list[Rows]:
        labels = np.asarray(self.dataset["label"])
        pools: dict[int, Rows] = {int(c): self._rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)}
        check_classes(self._high, len(pools))
        if 0 < self._samples < self._high:
            raise DataError(
                f"samples-per-client: {self._samples} samples cannot come from {self._high} classes; give more"
            )
        counts = self._rng.integers(self._low, self._high, size=self._num_partitions, endpoint=True)
        assign = {"random": self._random, "even": self._even, "shards": self._shards}[self._assignment]
        owned = assign(counts, sorted(pools))
        deal = self._deal_samples if self._samples else self._share_out
        return [np.sort(np.concatenate(parts)) for parts in deal(owned, pools)]

    def _random(self, counts: Rows, classes: list[int]) -> list[list[int]]:
        return [[int(c) for c in self._rng.choice(classes, size=count, replace=False)] for count in counts]

    def _even(self, counts: Rows, classes: list[int]) -> list[list[int]]:
        """Assign classes so that their numbers of owners differ by at most 1.

        Each client gets the classes with the most owners still missing; ties are broken at random.
        """
        total = int(counts.sum())
        left = np.full(len(classes), total // len(classes))
        left[self._rng.permutation(len(classes))[: total % len(classes)]] += 1
        owned: list[list[int]] = [[] for _ in counts]
        for client, count in enumerate(counts):
            ranking = np.lexsort((self._rng.random(len(classes)), -left))[:count]
            left[ranking] -= 1
            owned[client] = [classes[index] for index in ranking]
        return owned

    def _shards(self, counts: Rows, classes: list[int]) -> list[list[int]]:
        """Shuffle the shards of all classes, whose numbers differ by at most 1, and deal them in order."""
        order = self._rng.permutation(np.resize(self._rng.permutation(classes), int(counts.sum())))
        return [[int(c) for c in part] for part in np.split(order, np.cumsum(counts)[:-1])]

    def _deal_samples(self, owned: list[list[int]], pools: dict[int, Rows]) -> list[list[Rows]]:
        """Give each client m/S samples of each class it owns; several shards of a class are one portion of it."""
        position = dict.fromkeys(pools, 0)
        result = []
        for client, classes in enumerate(owned):
            portions = dict.fromkeys(classes, 0)
            for rank, c in enumerate(classes):
                portions[c] += self._samples // len(classes) + (rank < self._samples % len(classes))
            parts = []
            for c, wanted in portions.items():
                pool = pools[c]
                if wanted > len(pool):
                    raise DataError(
                        f"samples-per-client: client {client} needs {wanted} samples of class {c}, which has only "
                        f"{len(pool)}; lower samples-per-client or raise classes-per-client"
                    )
                parts.append(pool[np.arange(position[c], position[c] + wanted) % len(pool)])
                position[c] += wanted
            result.append(parts)
        return result

    def _share_out(self, owned: list[list[int]], pools: dict[int, Rows]) -> list[list[Rows]]:
        """Divide the samples of each class evenly among the clients that own the class."""
        result: list[list[Rows]] = [[] for _ in owned]
        for c, pool in pools.items():
            owners = [client for client, classes in enumerate(owned) for _ in range(classes.count(c))]
            if len(owners) > len(pool):
                raise DataError(
                    f"num-clients: class {c} has {len(pool)} samples for {len(owners)} clients; use fewer clients"
                )
            for owner, part in zip(owners, np.array_split(pool, max(1, len(owners))), strict=False):
                result[owner].append(part)
        return result


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return the :class:`ClassPartitioner` of ``settings``."""
    return ClassPartitioner(
        settings.num_clients,
        class_range(settings.classes_per_client),
        settings.samples_per_client,
        settings.class_assignment,
        seed,
    )
