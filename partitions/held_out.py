"""Choose each client's test rows: of its own training rows, or of the test split in its own class proportions."""

from __future__ import annotations

import math

import numpy as np

from florilegium.common.errors import DataError
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Dealt, Rows
from florilegium.partitions.spec import Dataset, Split

HELD_BACK = 0.2
"""Share of the rows that is held out for testing if the source has no test split."""
RARE = 0.001
"""Classes with a smaller share of the training examples do not limit the size of the clients' test sets."""


def kept(count: int) -> int:
    """Return how many of a client's ``count`` examples remain for training after its test share is held out."""
    return count - round(count * HELD_BACK)


def hold_out(rows: list[Rows], share: float, rng: np.random.Generator) -> tuple[list[Rows], list[Rows]]:
    """Hold out a random ``share`` (0..1) of every client's rows, rounded up, for testing.

    Returns:
        Training rows and test rows of each client, both sorted.
    """
    mixed = [rng.permutation(own) for own in rows]
    cuts = [math.floor(len(own) * (1 - share)) for own in rows]
    pairs = [(np.sort(own[:end]), np.sort(own[end:])) for own, end in zip(mixed, cuts, strict=True)]
    return [train for train, _ in pairs], [test for _, test in pairs]


def hold_back(train: list[Rows]) -> tuple[list[Rows], list[Rows]]:
    """Hold out the last fifth of every client's rows for testing; return training rows and test rows of each client.

    A client with a single row keeps it for training.
    """
    cuts = [kept(len(rows)) for rows in train]
    pairs = [(rows[:cut], rows[cut:]) for rows, cut in zip(train, cuts, strict=True)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def matched(
    dataset: Dataset, train: list[Rows], test_split: Split, test_rows: Rows, rng: np.random.Generator
) -> list[Rows]:
    """Draw test rows for every client in its own class proportions, without overlap.

    The method is described in docs/architecture.md, "Data". Targets without strata count as one class.

    Args:
        dataset: the data.
        train: training rows of each client.
        test_split: the split that test rows come from.
        test_rows: the rows of it to draw from.
        rng: the generator.
    """
    task = dataset.spec.learned
    classes, train_y, test_y = max(1, task.num_strata), task.strata(dataset.train.y), task.strata(test_split.y)
    demand = np.stack([np.bincount(train_y[rows], minlength=classes) for rows in train])
    pools = [rng.permutation(test_rows[test_y[test_rows] == c]) for c in range(classes)]
    supply = np.array([len(pool) for pool in pools])
    wanted = demand.sum(axis=0)
    common = (wanted >= RARE * wanted.sum()) & (supply > 0)
    t = min([1.0, *(supply[common] / wanted[common])])
    parts: list[list[Rows]] = [[] for _ in train]
    for c, pool in enumerate(pools):
        exact = min(t, len(pool) / max(1, wanted[c])) * demand[:, c]
        counts = np.floor(exact + 1e-9).astype(np.int64)
        # The class's remaining rows go to the clients with the largest remainders, ties at random.
        spare = min(int(np.floor(exact.sum() + 1e-9)), len(pool)) - int(counts.sum())
        order = np.lexsort((rng.random(len(train)), -(exact - counts)))
        counts[order[: max(0, spare)]] += 1
        for client, part in enumerate(np.split(pool[: counts.sum()], np.cumsum(counts)[:-1])):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


def check_apart(settings: FederationSettings, dealt: Dealt) -> None:
    """Check that no example is two clients' test example, and none is a training and a test example.

    Raises:
        DataError: if one is.
    """
    parts = [np.unique(np.concatenate(dealt.train))] if dealt.test_from_train and dealt.train else []
    rows, counts = np.unique(np.concatenate([*parts, *dealt.test]), return_counts=True)
    if counts.max(initial=0) > 1:
        raise DataError(
            f"partitioner '{settings.partitioner}': row {rows[counts.argmax()]} would be a test example and also a "
            "training example, or another client's test example"
        )
