"""Ask a partitioner, the suite's own or another package's, which rows each client holds, and check its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from florilegium.common.errors import DataError, FlorilegiumError
from florilegium.partitions.partitioning import Partitioning
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation, Rows
from florilegium.partitions.split_table import SplitTable

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner


def made(settings: FederationSettings, partitioning: Partitioning, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner of ``settings`` for ``rows`` (:attr:`Partitioning.make`).

    Raises:
        DataError: if it cannot be made, or is no partitioner.
    """
    from flwr_datasets.partitioner import Partitioner

    with failures_named(settings):
        partitioner = partitioning.maker()(settings, rows, seed)
    if not isinstance(partitioner, Partitioner):
        raise DataError(
            f"partitioner '{settings.partitioner}' returned {type(partitioner).__name__}, expected a "
            "flwr_datasets.partitioner.Partitioner"
        )
    partitioner.dataset = rows
    return partitioner


def asked(
    settings: FederationSettings, partitioner: Partitioner, choose: Callable[[int], Rows]
) -> tuple[Rows, list[Rows]]:
    """Return the partitions that ``choose`` takes of all there are, and the rows of each.

    Raises:
        DataError: if the rows cannot be divided as asked, or a partition does not say which rows it has.
    """
    name = f"partitioner '{settings.partitioner}'"
    with failures_named(settings):
        try:
            chosen = choose(partitioner.num_partitions)
            found = [partitioner.load_partition(int(number)) for number in chosen]
        except ValueError as error:  # flwr-datasets' word for data that do not suffice
            raise DataError(
                f"{name} cannot share '{settings.dataset}' out over {settings.num_clients} clients: {error} Use fewer "
                "clients, more samples, or (dirichlet) a larger alpha."
            ) from error
        for number, part in zip(chosen, found, strict=True):
            if "row" not in part.column_names:
                raise DataError(f"{name}: partition {number} has lost the column 'row'")
        return chosen, [np.asarray(part["row"], dtype=np.int64) for part in found]


def split_of(settings: FederationSettings, partitioning: Partitioning) -> SplitTable | None:
    """Return the split that is fixed as a whole (:attr:`Partitioning.split`); None if the partitioner divides rows.

    Raises:
        DataError: if it cannot be read, or is no :class:`SplitTable`.
    """
    if partitioning.split is None:
        return None
    with failures_named(settings):
        table: object = partitioning.table_of_rows(settings)
    if not isinstance(table, SplitTable):
        raise DataError(f"partitioner '{settings.partitioner}' returned {type(table).__name__}, expected a SplitTable")
    return table


def check_tests(settings: FederationSettings, federation: Federation) -> None:
    """Check that no example is two clients' test example, and none is a training and a test example.

    Raises:
        DataError: if one is.
    """
    parts = [np.unique(federation.train.rows)] if federation.test_from_train else []
    rows, counts = np.unique(np.concatenate([*parts, federation.test.rows]), return_counts=True)
    if counts.max(initial=0) > 1:
        raise DataError(
            f"partitioner '{settings.partitioner}': row {rows[counts.argmax()]} would be a test example and also a "
            "training example, or another client's test example"
        )


@contextmanager
def failures_named(settings: FederationSettings) -> Iterator[None]:
    """Context for calls of a partitioner, which may be another package's and raise anything.

    Raises:
        DataError: with the partitioner's name and reason, in place of the exception.
    """
    try:
        yield
    except FlorilegiumError:
        raise
    except Exception as error:
        raise DataError(f"partitioner '{settings.partitioner}' failed: {type(error).__name__}: {error}") from error


def check(settings: FederationSettings, partitioning: Partitioning, rows: Rows, parts: list[Rows]) -> None:
    """Check what every partition must satisfy, whoever made it.

    Raises:
        DataError: if there are not ``num-clients`` parts, a part has a row that was not to be divided, or one twice, or
            a row has more or fewer owners than the partitioner allows.
    """
    what = f"partitioner '{settings.partitioner}'"
    if settings.num_clients and len(parts) != settings.num_clients:
        raise DataError(f"{what}: made {len(parts)} clients, not num-clients = {settings.num_clients}")
    index = np.full(int(rows.max(initial=-1)) + 1, -1)
    index[rows] = np.arange(len(rows))
    owners = np.zeros(len(rows), np.int64)
    for client, part in enumerate(parts):
        inside = (part >= 0) & (part < len(index))
        inside[inside] = index[part[inside]] >= 0
        if not inside.all():
            raise DataError(f"{what}: client {client} would hold row {part[~inside][0]}, which is not to be divided")
        counts = np.bincount(index[part], minlength=len(rows))
        if counts.max(initial=0) > 1:
            raise DataError(f"{what}: client {client} would hold row {rows[counts.argmax()]} more than once")
        owners += counts
    if owners.max(initial=0) > 1 and not (partitioning.rows == "shared" and settings.samples_per_client):
        raise DataError(f"{what}: {owners.max()} clients would hold row {rows[owners.argmax()]}")
    if partitioning.rows == "all" and not owners.all():
        raise DataError(f"{what}: {(owners == 0).sum()} of {len(rows)} rows would have no owner")
