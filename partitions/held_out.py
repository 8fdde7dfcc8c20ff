"""Choose each client's test rows: of its own training rows, or of the test split in its own class proportions."""

from __future__ import annotations

import numpy as np

from florilegium.common.errors import DataError
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Dealt, Rows, Shares, counted
from florilegium.partitions.spec import Dataset, Split

HELD_BACK = 0.2
"""Share of the rows that is held out for testing if the source has no test split."""
RARE = 0.001
"""Classes with a smaller share of the training examples do not limit the size of the clients' test sets."""


def kept(counts: Rows) -> Rows:
    """Return how many of each client's ``counts`` examples remain for training after its test share is held out."""
    return counts - np.round(counts * HELD_BACK).astype(np.int64)


def hold_out(rows: Shares, share: float, rng: np.random.Generator) -> tuple[Shares, Shares]:
    """Hold out a random ``share`` (0..1) of every client's rows, rounded up, for testing.

    Returns:
        Training rows and test rows of each client, both sorted.
    """
    mixed = Shares.of([rng.permutation(own) for own in rows])
    train, test = mixed.cut(np.floor(rows.sizes * (1 - share)).astype(np.int64))
    return train.ordered(), test.ordered()


def hold_back(train: Shares) -> tuple[Shares, Shares]:
    """Hold out the last fifth of every client's rows for testing; return training rows and test rows of each client.

    A client with a single row keeps it for training.
    """
    return train.cut(kept(train.sizes))


def matched(dataset: Dataset, train: Shares, test_split: Split, test_rows: Rows, rng: np.random.Generator) -> Shares:
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
    demand = counted(train, train_y, classes)
    pools = [rng.permutation(test_rows[test_y[test_rows] == c]) for c in range(classes)]
    supply = np.array([len(pool) for pool in pools])
    wanted = demand.sum(axis=0)
    common = (wanted >= RARE * wanted.sum()) & (supply > 0)
    t = min([1.0, *(supply[common] / wanted[common])])
    drawn, owners = list[Rows](), list[Rows]()
    for c, pool in enumerate(pools):
        exact = min(t, len(pool) / max(1, wanted[c])) * demand[:, c]
        counts = np.floor(exact + 1e-9).astype(np.int64)
        # The class's remaining rows go to the clients with the largest remainders, ties at random.
        spare = min(int(np.floor(exact.sum() + 1e-9)), len(pool)) - int(counts.sum())
        order = np.lexsort((rng.random(len(train)), -(exact - counts)))
        counts[order[: max(0, spare)]] += 1
        drawn.append(pool[: counts.sum()])
        owners.append(np.repeat(np.arange(len(train)), counts))
    tests, owner = np.concatenate(drawn), np.concatenate(owners)
    return Shares.sized(tests[np.lexsort((tests, owner))], np.bincount(owner, minlength=len(train)))


def check_apart(settings: FederationSettings, dealt: Dealt) -> None:
    """Check that no example is two clients' test example, and none is a training and a test example.

    Raises:
        DataError: if one is.
    """
    counts = np.bincount(dealt.test.rows, minlength=int(dealt.train.rows.max(initial=-1)) + 1)
    if dealt.test_from_train:
        counts[np.bincount(dealt.train.rows, minlength=len(counts)) > 0] += 1
    if counts.max(initial=0) > 1:
        raise DataError(
            f"partitioner '{settings.partitioner}': row {counts.argmax()} would be a test example and also a "
            "training example, or another client's test example"
        )
