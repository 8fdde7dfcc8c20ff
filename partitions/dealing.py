"""Divide rows among clients: training rows by a partitioner, test rows in each client's own class proportions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.seeds import entropy
from florilegium.partitions.natural_clients import choose_natural, client_names
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows
from florilegium.partitions.spec import Dataset, Split

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner

    Make = Callable[[FederationSettings, HubDataset, int], Partitioner]

PARTITIONERS: Mapping[str, str] = {
    "iid": "florilegium.partitions.partitioners.iid",
    "classes": "florilegium.partitions.partitioners.classes",
    "dirichlet": "florilegium.partitions.partitioners.dirichlet",
    "rotation": "florilegium.partitions.partitioners.rotation",
    "natural": "florilegium.partitions.partitioners.natural",
    "mdm": "florilegium.partitions.partitioners.mdm",
}
"""Module of each partitioner; imported when used, since flwr-datasets takes seconds to import."""

RARE = 0.001
"""Classes with a smaller share of the training examples do not limit the size of the clients' test sets."""


def deal(
    settings: FederationSettings,
    dataset: Dataset,
    rows: Rows,
    test_split: Split,
    test_rows: Rows,
    rng: np.random.Generator,
) -> tuple[list[Rows], list[Rows], list[str]]:
    """Divide training and test rows among clients; return each client's training rows, test rows and domain name.

    With ``domain-column``, each domain's rows are divided among the same number of clients.

    Raises:
        ConfigurationError: if keys contradict each other or the data.
        DataError: if there are not enough rows.
    """
    train: list[Rows] = []
    test: list[Rows] = []
    names: list[str] = []
    domains = {"": (rows, test_rows)}
    if settings.domain_column:
        domains = _domains(settings, dataset, rows, test_split, test_rows)
    each = settings.model_copy(update={"num_clients": settings.num_clients // len(domains)})
    for domain, (own, tests) in domains.items():
        try:
            dealt, _ = partition(each, dataset, own, None, rng, domain)
        except DataError as error:
            raise DataError(f"domain '{domain}': {error}" if domain else str(error)) from error
        train += dealt
        test += _matched(dataset.train.y, dealt, test_split.y, tests, dataset.spec.classes, rng)
        names += [domain] * len(dealt)
    return train, test, names


def _domains(
    settings: FederationSettings, dataset: Dataset, rows: Rows, test_split: Split, test_rows: Rows
) -> dict[str, tuple[Rows, Rows]]:
    """Return the training and the test rows of every domain."""
    column = settings.domain_column
    for part, split in (("training", dataset.train), ("test", test_split)):
        if column not in split.clients:
            raise ConfigurationError(
                f"domain-column: the {part} rows of '{settings.dataset}' have no column '{column}'"
                f"{nearest(column, split.clients)} Columns of names: {', '.join(split.clients) or 'none'}."
            )
    owners, test_owners = dataset.train.clients[column][rows], test_split.clients[column][test_rows]
    found = {str(d): (rows[owners == d], test_rows[test_owners == d]) for d in np.unique(owners)}
    if not settings.num_clients or settings.num_clients % len(found):
        raise ConfigurationError(
            f"num-clients: {settings.num_clients} clients cannot be split evenly over the {len(found)} domains of "
            f"'{settings.dataset}' ({', '.join(found)}); use a multiple of {len(found)} above 0"
        )
    if without := [domain for domain, (_, tests) in found.items() if not len(tests)]:
        raise DataError(f"domain-column: domain '{without[0]}' of '{settings.dataset}' has no test rows")
    return found


def partition(
    settings: FederationSettings,
    dataset: Dataset,
    rows: Rows,
    column: str | None,
    rng: np.random.Generator,
    domain: str = "",
) -> tuple[list[Rows], list[str]]:
    """Divide the training ``rows`` among clients; return each client's rows and its natural name.

    Args:
        settings: settings of the federation.
        dataset: the data.
        rows: rows of its training split to divide.
        column: column of natural clients' names; None if a partitioner makes the clients.
        rng: generator that chooses natural clients if not all of them take part.
        domain: domain that the rows belong to; "" without domains.

    Raises:
        ConfigurationError: if ``num-clients`` is 0 without natural clients.
        DataError: if there are not enough rows, or the partitioner cannot divide them.
    """
    from datasets import Dataset as HubDataset
    from datasets import disable_progress_bars

    disable_progress_bars()
    n, m = settings.num_clients, settings.samples_per_client
    if n == 0 and column is None:
        raise ConfigurationError("num-clients: 0 (all there are) goes with partitioner = 'natural' only; give a number")
    if n > len(rows):
        raise DataError(f"num-clients: {n} clients cannot share {len(rows)} training examples of '{settings.dataset}'")
    module = importlib.import_module(PARTITIONERS[settings.partitioner])
    if m and column is None and not getattr(module, "CHOOSES_ROWS", False):
        if n * m > len(rows):
            raise DataError(
                f"samples-per-client: {n} clients with {m} samples each need {n * m} training examples; "
                f"'{settings.dataset}' has {len(rows)}"
            )
        rows = rows[: n * m]
    table: dict[str, NDArray[np.generic]] = {"row": rows, "label": dataset.train.y[rows]}
    if column is not None:
        table["client"] = client_names(dataset.train, column)[rows]
    if hasattr(module, "columns"):
        table |= module.columns(settings, dataset, rows)
    make: Make = module.make
    purpose = ("federation", domain) if domain else ("federation",)
    partitioner = make(settings, hub := HubDataset.from_dict(table), entropy(settings.seed, *purpose) % 2**32)
    partitioner.dataset = hub
    try:
        chosen = np.arange(partitioner.num_partitions)
        if column is not None:
            chosen = choose_natural(settings, len(chosen), rng)
        parts = [np.asarray(partitioner.load_partition(int(i))["row"], dtype=np.int64) for i in chosen]
    except ValueError as error:
        raise DataError(
            f"partitioner '{settings.partitioner}' cannot share '{settings.dataset}' out over {n} clients: {error} "
            "Use fewer clients, more samples, or (dirichlet) a larger alpha."
        ) from error
    if column is None:
        return parts, [""] * len(parts)
    if m:
        parts = [part[:m] for part in parts]
    return parts, [partitioner.partition_id_to_natural_id[int(i)] for i in chosen]


def _matched(
    train_y: Rows, train: list[Rows], test_y: Rows, test_rows: Rows, classes: int, rng: np.random.Generator
) -> list[Rows]:
    """Draw test rows for every client in its own class proportions, without overlap.

    The method is described in docs/architecture.md, "Data".
    """
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
