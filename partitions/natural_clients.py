"""Names in the data, of natural clients or domains: their column, their rows, and which clients are skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.partitions.held_out import kept
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows, Shares
from florilegium.partitions.sources.names import MISSING
from florilegium.partitions.spec import Dataset, Split


@dataclass(frozen=True)
class Natural:
    """Which natural clients each of n clients consists of.

    Attributes:
        names: names of natural clients, those of the first client first, (k,).
        counts: of how many natural clients each client consists, (n,).
    """

    names: NDArray[np.str_]
    counts: Rows

    @staticmethod
    def of(groups: Sequence[Sequence[str]]) -> Natural:
        """Return the natural clients of groups, one for each client."""
        names = np.array(list(chain.from_iterable(groups)), np.str_)
        return Natural(names, np.array([len(group) for group in groups], np.int64))

    @property
    def joined(self) -> list[str]:
        """The name of each client: those of its natural clients, joined by "|"."""
        names, ends = self.names.tolist(), np.cumsum(self.counts).tolist()
        return ["|".join(names[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def with_enough_tests(
    settings: FederationSettings, dataset: Dataset, rows: Rows, column: str, test_from_train: bool
) -> Rows:
    """Return the training ``rows`` of the natural clients that will have at least ``min-test-examples`` test examples.

    Raises:
        DataError: if there is no such client.
    """
    owners = client_names(dataset.train, column)
    if test_from_train:
        names, counts = np.unique(owners, return_counts=True)
        counts = np.minimum(counts, settings.samples_per_client or counts)
        counts = counts - kept(counts)
    else:
        assert dataset.test is not None
        names, counts = np.unique(client_names(dataset.test, column), return_counts=True)
    left = rows[np.isin(owners[rows], names[counts >= settings.min_test_examples])]
    if len(left) == 0:
        raise DataError(
            f"min-test-examples: no client of '{settings.dataset}' has {settings.min_test_examples} test examples; the "
            f"most are {counts.max()}"
        )
    return left


def client_column(settings: FederationSettings, dataset: Dataset) -> str:
    """Return the column that names natural clients: ``client-column``, or the first that the dataset is known to have.

    Where a schema was inferred, ``client-column`` may be any column whose values repeat.

    Raises:
        ConfigurationError: if the dataset has no such column.
    """
    first = [c for c in dataset.spec.client_columns if c in dataset.train.clients]
    columns = [*first, *(c for c in dataset.train.clients if c not in first)]
    if not first and not (columns and settings.client_column):
        which = f"name one of '{settings.dataset}' with client-column: {', '.join(columns)}"
        raise ConfigurationError(
            f"partitioner: '{settings.partitioner}' needs a column of client names; "
            + (which if columns else f"'{settings.dataset}' has none")
        )
    unknown = [c for c in settings.client_column.split("+") if c not in columns] if settings.client_column else []
    if unknown:
        raise ConfigurationError(
            f"client-column: '{unknown[0]}' is not one of {', '.join(columns)}, the columns of '{settings.dataset}' "
            f"that name clients; several are joined by '+'{nearest(unknown[0], columns)}"
        )
    return settings.client_column or columns[0]


def check_names(settings: FederationSettings, dataset: Dataset, column: str, rows: Rows) -> str | None:
    """Check the names of natural clients, or of domains: no row lacks one, and test rows name clients that exist.

    Args:
        settings: settings of the federation.
        dataset: the data.
        column: the column of names, or several joined by "+".
        rows: the training rows that are divided.

    Returns:
        A sentence on the test rows that are not used; None if all are.

    Raises:
        DataError: if a row has no name, or no test row has the name of a training row.
    """
    _check_present(settings, dataset.train, column, rows, "training")
    if dataset.test is None:
        return None
    if not has_names(dataset.test, column):
        return (
            f"the test rows of '{settings.dataset}' have no column '{column}' and are not used; a fifth of each "
            "client's training rows is held out instead"
        )
    _check_present(settings, dataset.test, column, np.arange(len(dataset.test)), "test")
    trained = np.unique(client_names(dataset.train, column))
    names, counts = np.unique(client_names(dataset.test, column), return_counts=True)
    unknown = ~np.isin(names, trained)
    found = f"{', '.join(names[unknown][:5])}{', …' if unknown.sum() > 5 else ''}"
    if len(names) and unknown.all():
        raise DataError(
            f"{_key(settings)}: column '{column}' of '{settings.dataset}' names {unknown.sum()} clients in test rows, "
            f"none of which has training rows, so that nobody would be evaluated. Test rows: {found}; training rows: "
            f"{', '.join(trained[:5])}{', …' if len(trained) > 5 else ''}. Use the same names in both"
        )
    if unknown.any():
        return (
            f"{counts[unknown].sum()} of {counts.sum()} test rows of '{settings.dataset}' are not used: their clients "
            f"have no training rows (column '{column}': {found})"
        )
    return None


def _key(settings: FederationSettings) -> str:
    """Return the key that chooses the column of names."""
    return "domain-column" if settings.domain_column else "client-column"


def _check_present(settings: FederationSettings, split: Split, column: str, rows: Rows, part: str) -> None:
    """Raise :class:`DataError` if one of the ``rows`` of a split has no name."""
    for single in column.split("+"):
        missing = np.sort(rows[split.clients[single][rows] == MISSING])
        if len(missing):
            raise DataError(
                f"{_key(settings)}: column '{single}' of '{settings.dataset}' names no client in row {missing[0]} of "
                f"the {part} rows, {len(missing)} rows in all; fill in the names, or remove these rows"
            )


def has_names(split: Split, column: str) -> bool:
    """Return whether a split has the client names of ``column``, or of all columns that it joins by "+"."""
    return set(column.split("+")) <= split.clients.keys()


def client_names(split: Split, column: str) -> NDArray[np.str_]:
    """Return the client name of each row, (n,): the value in ``column``, or those of several columns joined by "+".

    Raises:
        DataError: if two clients would have the same joined name.
    """
    parts = [np.asarray(split.clients[part]) for part in column.split("+")]
    if len(parts) == 1:
        return parts[0]
    joined = parts[0]
    for other in parts[1:]:
        joined = np.char.add(np.char.add(joined, "+"), other)
    if any("+" in name for part in parts for name in np.unique(part)):
        cells = np.stack(parts, axis=1)
        known: dict[str, tuple[str, ...]] = {}
        for name, row in zip(joined.tolist(), map(tuple, cells.tolist()), strict=True):
            if known.setdefault(name, row) != row:
                raise DataError(
                    f"column '{column}': {' and '.join(map(str, (known[name], row)))} are both joined to '{name}'; "
                    "write the names without '+'"
                )
    return joined


def rows_of(split: Split, column: str, clients: Natural) -> Shares:
    """Return the rows of each client, those of one natural client after the other; none if the split has none."""
    values = client_names(split, column)
    order = np.argsort(values, kind="stable")
    values = values[order]
    starts, ends = (np.searchsorted(values, clients.names, side) for side in ("left", "right"))
    found = Shares.between(order, starts, ends)
    firsts = np.concatenate([[0], np.cumsum(clients.counts)])
    return Shares(found.rows, found.offsets[firsts])


def domains(
    settings: FederationSettings, dataset: Dataset, rows: Rows, test_split: Split, test_rows: Rows
) -> dict[str, tuple[Rows, Rows]]:
    """Return the training and the test rows of every domain.

    Raises:
        ConfigurationError: if there is no such column, or ``num-clients`` is no multiple of their number.
        DataError: if a domain has no test rows.
    """
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
