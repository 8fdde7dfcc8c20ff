"""Ask a partitioner, the suite's own or another package's, which rows each client holds, and check its answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, FlorilegiumError
from florilegium.common.references import imported
from florilegium.common.seeds import entropy
from florilegium.partitions.natural_clients import Natural
from florilegium.partitions.partitioning import Partitioning
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows, Shares
from florilegium.partitions.spec import Dataset
from florilegium.partitions.split_table import SplitTable

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner


def ask(
    settings: FederationSettings,
    dataset: Dataset,
    rows: Rows,
    names: NDArray[np.str_] | None,
    rng: np.random.Generator,
    domain: str = "",
) -> tuple[Shares, Natural | None]:
    """Divide the training ``rows`` among clients; return each client's rows and the natural clients it consists of.

    The second value is None where a partitioner makes the clients.

    Args:
        settings: settings of the federation.
        dataset: the data.
        rows: rows of its training split to divide.
        names: name of the natural client that holds each row of the split; None if a partitioner makes the clients.
        rng: generator that chooses natural clients if not all of them take part.
        domain: domain that the rows belong to; "" without domains.

    Raises:
        ConfigurationError: if ``num-clients`` is 0 without natural clients, or the partitioner cannot divide numbers.
        DataError: if there are not enough rows, or the partitioner cannot divide them.
    """
    from datasets import disable_progress_bars

    from florilegium.partitions.selecting import RowsToDivide

    disable_progress_bars()
    n, m = settings.num_clients, settings.samples_per_client
    partitioning = PARTITIONERS[settings.partitioner]
    task = dataset.spec.learned
    if not partitioning.numbers and not task.num_strata:
        fitting = [name for name in PARTITIONERS.own if PARTITIONERS[name].numbers]
        raise ConfigurationError(
            f"partitioner: '{settings.partitioner}' cannot divide '{settings.dataset}', whose targets have no "
            f"classes (the task {task.title}). Partitioners that can: {', '.join(fitting)}"
        )
    if n == 0 and names is None:
        raise ConfigurationError(
            "num-clients: 0 (all there are) goes with partitioner = 'natural', 'grouped-natural' and 'file' only; give "
            "a number"
        )
    if n > len(rows):
        raise DataError(f"num-clients: {n} clients cannot share {len(rows)} training examples of '{settings.dataset}'")
    if m and names is None and not partitioning.chooses_rows:
        if n * m > len(rows):
            raise DataError(
                f"samples-per-client: {n} clients with {m} samples each need {n * m} training examples; "
                f"'{settings.dataset}' has {len(rows)}"
            )
        rows = rows[: n * m]
    table: dict[str, NDArray[Any]] = {"row": rows, "label": _label_of(dataset, rows)}
    if names is not None:
        table["client"] = names[rows]
    with _failures_named(settings):
        table |= imported(partitioning.columns)(settings, dataset, rows) if partitioning.columns else {}
    purpose = ("federation", domain) if domain else ("federation",)
    seed = entropy(settings.seed, *purpose) % 2**32
    partitioner = _made(settings, partitioning, RowsToDivide.of(table), seed)
    chosen, parts = _asked(settings, partitioner, None if names is None else rng)
    _check(settings, partitioning, rows, parts)
    if names is None:
        return parts, None
    if m:
        parts, _ = parts.cut(np.minimum(parts.sizes, m))
    if hasattr(partitioner, "partition_id_to_natural_ids"):
        return parts, Natural.of([partitioner.partition_id_to_natural_ids[i] for i in chosen.tolist()])
    single = [partitioner.partition_id_to_natural_id[i] for i in chosen.tolist()]
    return parts, Natural(np.array(single, np.str_), np.ones(len(single), np.int64))


def _label_of(dataset: Dataset, rows: Rows) -> NDArray[Any]:
    """Return the stratum of each training row or, without strata, its first target."""
    task, y = dataset.spec.learned, dataset.train.y[rows]
    return task.strata(y) if task.num_strata else y.reshape(len(y), -1)[:, 0]


def _chosen(settings: FederationSettings, available: int, rng: np.random.Generator) -> Rows:
    """Draw ``num-clients`` of the ``available`` natural clients, or all if it is 0; return their sorted indices.

    Raises:
        DataError: if fewer are available.
    """
    if settings.num_clients > available:
        raise DataError(
            f"num-clients: '{settings.dataset}' has only {available} natural clients, not "
            f"{settings.num_clients}; 0 takes all"
        )
    return np.sort(rng.permutation(available)[: settings.num_clients or available])


def _made(settings: FederationSettings, partitioning: Partitioning, rows: HubDataset, seed: int) -> Partitioner:
    """Return the partitioner of ``settings`` for ``rows`` (:attr:`Partitioning.make`).

    Raises:
        DataError: if it cannot be made, or is no partitioner.
    """
    from flwr_datasets.partitioner import Partitioner

    with _failures_named(settings):
        partitioner = imported(partitioning.make)(settings, rows, seed)
    if not isinstance(partitioner, Partitioner):
        raise DataError(
            f"partitioner '{settings.partitioner}' returned {type(partitioner).__name__}, expected a "
            "flwr_datasets.partitioner.Partitioner"
        )
    partitioner.dataset = rows
    return partitioner


def _asked(
    settings: FederationSettings, partitioner: Partitioner, rng: np.random.Generator | None
) -> tuple[Rows, Shares]:
    """Return the partitions that ``rng`` chooses, or all there are without it, and the rows of each.

    Raises:
        DataError: if the rows cannot be divided as asked, or a partition does not say which rows it has.
    """
    from florilegium.partitions.selecting import rows_in

    name = f"partitioner '{settings.partitioner}'"
    with _failures_named(settings):
        try:
            count = partitioner.num_partitions
            chosen = np.arange(count) if rng is None else _chosen(settings, count, rng)
            found = [rows_in(partitioner.load_partition(number)) for number in chosen.tolist()]
        except ValueError as error:  # flwr-datasets' word for data that do not suffice
            raise DataError(
                f"{name} cannot share '{settings.dataset}' out over {settings.num_clients} clients: {error} Use fewer "
                "clients, more samples, or (dirichlet) a larger alpha."
            ) from error
        parts = [part for part in found if part is not None]
        if len(parts) < len(found):
            lost = chosen[[part is None for part in found]]
            raise DataError(f"{name}: partition {lost[0]} has lost the column 'row'")
        return chosen, Shares.of(parts)


def split_of(settings: FederationSettings) -> SplitTable | None:
    """Return the split that is fixed as a whole (:attr:`Partitioning.split`); None if the partitioner divides rows.

    Raises:
        DataError: if it cannot be read, or is no :class:`SplitTable`.
    """
    partitioning = PARTITIONERS[settings.partitioner]
    if partitioning.split is None:
        return None
    with _failures_named(settings):
        table: object = imported(partitioning.split)(settings)
    if not isinstance(table, SplitTable):
        raise DataError(f"partitioner '{settings.partitioner}' returned {type(table).__name__}, expected a SplitTable")
    return table


@contextmanager
def _failures_named(settings: FederationSettings) -> Iterator[None]:
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


def _check(settings: FederationSettings, partitioning: Partitioning, rows: Rows, parts: Shares) -> None:
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
    held, holders = parts.rows, parts.owners
    inside = (held >= 0) & (held < len(index))
    inside[inside] = index[held[inside]] >= 0
    if not inside.all():
        first = inside.argmin()
        raise DataError(f"{what}: client {holders[first]} would hold row {held[first]}, which is not to be divided")
    places = np.sort(holders * len(rows) + index[held])
    if len(twice := places[1:][places[1:] == places[:-1]]):
        client, place = divmod(int(twice[0]), len(rows))
        raise DataError(f"{what}: client {client} would hold row {rows[place]} more than once")
    owners = np.bincount(index[held], minlength=len(rows))
    if owners.max(initial=0) > 1 and not (partitioning.rows == "shared" and settings.samples_per_client):
        raise DataError(f"{what}: {owners.max()} clients would hold row {rows[owners.argmax()]}")
    if partitioning.rows == "all" and not owners.all():
        raise DataError(f"{what}: {(owners == 0).sum()} of {len(rows)} rows would have no owner")
