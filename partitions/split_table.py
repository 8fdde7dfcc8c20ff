"""A split that is fixed as a whole: which rows of a dataset's training and test split each client holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.held_out import hold_back, matched
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Dealt, Rows, Shares
from florilegium.partitions.spec import Dataset


@dataclass(frozen=True)
class SplitTable:
    """Row numbers of n clients.

    Attributes:
        source: where the split comes from, for error messages.
        names: name of each client, n of them; "" for clients without names.
        train: training rows of each client, n arrays.
        test: test rows of each client, n arrays; None if test rows are dealt as for other partitioners.
        pooled: whether rows are counted over the training split followed by the test split; otherwise each part counts
            the rows of its own split.
        shared: whether several clients may hold the same row.
        dataset: name of the dataset that it divides; "" if it says nothing.
        examples: numbers of training and test rows of that dataset; None if it says nothing.
    """

    source: str
    names: tuple[str, ...]
    train: tuple[Rows, ...]
    test: tuple[Rows, ...] | None
    pooled: bool = False
    shared: bool = False
    dataset: str = ""
    examples: tuple[int, int] | None = None

    def check(self) -> None:
        """Check what can be checked without the dataset.

        Raises:
            DataError: if there are no clients, a client has no training rows, a row is negative, is listed twice for a
                client, or belongs to two clients though ``shared`` is false.
        """
        if not self.train:
            raise DataError(f"{self.source}: no clients; list at least one with training rows")
        for client, rows in enumerate(self.train):
            if not len(rows):
                raise DataError(f"{self.source}: {self.client(client)} has no training rows; give it some or remove it")
        parts = {"train": self.train, "test": self.test or ()}
        for part, rows_of in parts.items():
            for client, rows in enumerate(rows_of):
                if len(rows) and rows.min() < 0:
                    raise DataError(f"{self._at(client, part, rows.min())} is negative; the first row is 0")
                if (twice := _repeated(rows)) is not None:
                    raise DataError(f"{self._at(client, part, twice)} is listed twice")
        # In a pooled count, a training row may be another client's test row by mistake, or the client's own.
        groups = [parts["train"] + parts["test"]] if self.pooled else [parts["train"], parts["test"]]
        for rows_of in groups:
            self._check_owners(rows_of)

    def _check_owners(self, rows_of: tuple[Rows, ...]) -> None:
        """Refuse a row that occurs in two arrays of ``rows_of``: of one client, or of two if rows are not shared."""
        n = len(self.train)
        owners = np.repeat(np.arange(len(rows_of)), [len(rows) for rows in rows_of]) % n
        rows = np.concatenate([np.zeros(0, np.int64), *rows_of])
        order = np.lexsort((owners, rows))
        rows, owners = rows[order], owners[order]
        again = rows[1:] == rows[:-1]
        if len(own := np.flatnonzero(again & (owners[1:] == owners[:-1]))):
            client, row = owners[own[0]], rows[own[0]]
            raise DataError(
                f"{self.source}: {self.client(client)} lists row {row} for training and for testing; rows are pooled, "
                "so they are the same example"
            )
        if len(other := np.flatnonzero(again)) and not self.shared:
            first, second, row = owners[other[0]], owners[other[0] + 1], rows[other[0]]
            raise DataError(
                f"{self.source}: row {row} is listed for {self.client(first)} and for {self.client(second)}; to "
                'let clients share rows, set "shared": true'
            )

    def check_against(self, dataset: Dataset, clients: int) -> None:
        """Check that the split fits ``dataset``, as it is before pooling, and the value ``clients`` of ``num-clients``.

        Raises:
            DataError: if it was made for another dataset or for other numbers of rows, lists rows that do not exist, or
                has another number of clients.
        """
        sizes = (len(dataset.train), 0 if dataset.test is None else len(dataset.test))
        if self.dataset and self.dataset != dataset.spec.name:
            raise DataError(f"{self.source}: the split is of dataset '{self.dataset}', not of '{dataset.spec.name}'")
        if self.examples and self.examples != sizes:
            raise DataError(
                f"{self.source}: the split is of {self.examples[0]} training and {self.examples[1]} test rows, but "
                f"'{dataset.spec.name}' has {sizes[0]} and {sizes[1]}"
            )
        if clients not in (0, len(self.train)):
            raise DataError(
                f"num-clients: {self.source} has {len(self.train)} clients, not {clients}; set it to "
                f"{len(self.train)}, or to 0 for all"
            )
        limits = (sum(sizes),) * 2 if self.pooled else sizes
        for part, rows_of, limit in zip(("train", "test"), (self.train, self.test or ()), limits, strict=True):
            for client, rows in enumerate(rows_of):
                if len(rows) and rows.max() >= limit:
                    raise DataError(
                        f"{self._at(client, part, rows.max())} does not exist: '{dataset.spec.name}' has {limit} "
                        + ("rows, training and test together" if self.pooled else f"{part} rows")
                    )

    def client(self, index: int) -> str:
        """Return how error messages name a client."""
        return f"client '{self.names[index]}'" if self.names[index] else f"client {index}"

    def _at(self, client: int, part: str, row: int) -> str:
        return f"{self.source}: {self.client(client)}, part '{part}': row {row}"


def _repeated(rows: Rows) -> int | None:
    """Return a row that occurs more than once, or None."""
    ordered = np.sort(rows)
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    return int(ordered[again[0]]) if len(again) else None


_DIVIDING_KEYS = (
    "samples_per_client", "client_rows", "server_examples", "server_ood_examples", "domain_column", "min_test_examples",
)  # fmt: skip


def fixed(settings: FederationSettings, table: SplitTable, dataset: Dataset, rng: np.random.Generator) -> Dealt:
    """Take the rows from a split that is fixed as a whole.

    If it lists no test rows, they are dealt from the test split in each client's own class proportions; if there is no
    test split, or training rows come from it too, a fifth of each client's training rows, drawn at random, is held out.

    Raises:
        ConfigurationError: if a key asks for rows to be chosen or divided in another way.
        DataError: if the split does not fit the dataset.
    """
    for name in _DIVIDING_KEYS:
        if getattr(settings, name):
            raise ConfigurationError(
                f"{name.replace('_', '-')}: the split of partitioner '{settings.partitioner}' decides who holds which "
                f"rows; leave the key at its default (found: {getattr(settings, name)!r})"
            )
    table.check()
    table.check_against(dataset, settings.num_clients)
    train, names, no_rows = Shares.of(table.train), table.names, np.zeros(0, np.int64)
    if table.test is not None:
        return Dealt(train, Shares.of(table.test), names, table.pooled, no_rows)
    if table.pooled or dataset.test is None:
        train, test = hold_back(Shares.of([rng.permutation(rows) for rows in train]))
        return Dealt(train, test, names, True, no_rows)
    test = matched(dataset, train, dataset.test, np.arange(len(dataset.test)), rng)
    return Dealt(train, test, names, False, no_rows)
