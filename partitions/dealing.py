"""Deal out the rows of a dataset: to natural clients, to clients that a partitioner makes, or as a fixed split says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.partitions.asking import ask
from florilegium.partitions.held_out import HELD_BACK, hold_back, hold_out, matched
from florilegium.partitions.natural_clients import (
    check_names,
    client_column,
    client_names,
    has_names,
    rows_of,
    with_enough_tests,
)
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.server_rows import choose_rows
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows
from florilegium.partitions.spec import Dataset, Split
from florilegium.partitions.split_table import SplitTable


@dataclass(frozen=True)
class Dealt:
    """Who holds which rows, before anything else is said of the clients.

    Attributes:
        train: training rows of each client.
        test: test rows of each client.
        names: natural name of each client, or its domain; "" without either.
        test_from_train: whether test rows are of the training split.
        server: the server's rows of the training split.
        notes: what is to be said of rows that are not used; None if there is nothing to say.
    """

    train: list[Rows]
    test: list[Rows]
    names: list[str]
    test_from_train: bool
    server: Rows
    notes: str | None = None


def divided(settings: FederationSettings, dataset: Dataset, rng: np.random.Generator) -> Dealt:
    """Let the partitioner divide the rows.

    Raises:
        ConfigurationError: if keys contradict each other or the data.
        DataError: if there are not enough rows.
    """
    partitioning = PARTITIONERS[settings.partitioner]
    column = client_column(settings, dataset) if partitioning.natural else None
    if settings.domain_column and partitioning.natural:
        raise ConfigurationError(
            "domain-column: natural clients are not dealt out; leave it empty, or use client-column"
        )
    if settings.domain_column and partitioning.held_out:
        raise ConfigurationError(
            f"domain-column: '{settings.partitioner}' divides the rows of all domains together; leave it empty"
        )
    if settings.min_test_examples and settings.partitioner != "natural":
        raise ConfigurationError("min-test-examples: only partitioner = 'natural' leaves clients out; set it to 0")
    rows, server = choose_rows(settings, dataset, rng.permutation(len(dataset.train)))
    if partitioning.held_out:
        parts, _ = ask(settings, dataset, rows, None, rng)
        train, test = hold_out(parts, partitioning.held_out, rng)
        return Dealt(train, test, [""] * len(parts), True, server)
    if column is not None:
        return _to_natural(settings, dataset, column, rows, server, rng)
    return _to_made(settings, dataset, rows, server, rng)


def _to_natural(
    settings: FederationSettings, dataset: Dataset, column: str, rows: Rows, server: Rows, rng: np.random.Generator
) -> Dealt:
    """Give each natural client, or group of them, the training and test rows that carry its name."""
    tests = dataset.test if dataset.test is not None and has_names(dataset.test, column) else None
    notes = check_names(settings, dataset, column, rows)
    if settings.min_test_examples:
        rows = with_enough_tests(settings, dataset, rows, column, tests is None)
    train, groups = ask(settings, dataset, rows, client_names(dataset.train, column), rng)
    train, test = hold_back(train) if tests is None else (train, rows_of(tests, column, groups))
    return Dealt(train, test, ["|".join(group) for group in groups], tests is None, server, notes)


def _to_made(
    settings: FederationSettings, dataset: Dataset, rows: Rows, server: Rows, rng: np.random.Generator
) -> Dealt:
    """Divide training and test rows among clients that a partitioner makes.

    With ``domain-column``, each domain's rows are divided among the same number of clients, which have its name.
    """
    test_split, tests = dataset.test, np.arange(0 if dataset.test is None else len(dataset.test))
    if test_split is None:
        held = int(len(rows) * HELD_BACK)
        test_split, tests, rows = dataset.train, rows[:held], rows[held:]
    named = has_names(dataset.train, settings.domain_column)
    dealt = Dealt(
        [],
        [],
        [],
        dataset.test is None,
        server,
        check_names(settings, dataset, settings.domain_column, rows) if named else None,
    )
    domains = {"": (rows, tests)}
    if settings.domain_column:
        domains = _domains(settings, dataset, rows, test_split, tests)
    each = settings.model_copy(update={"num_clients": settings.num_clients // len(domains)})
    for domain, (own, own_tests) in domains.items():
        try:
            train, _ = ask(each, dataset, own, None, rng, domain)
        except DataError as error:
            raise DataError(f"domain '{domain}': {error}" if domain else str(error)) from error
        dealt.train.extend(train)
        dealt.test.extend(matched(dataset, train, test_split, own_tests, rng))
        dealt.names.extend([domain] * len(train))
    return dealt


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
    train, names, no_rows = list(table.train), list(table.names), np.zeros(0, np.int64)
    if table.test is not None:
        return Dealt(train, list(table.test), names, table.pooled, no_rows)
    if table.pooled or dataset.test is None:
        train, test = hold_back([rng.permutation(rows) for rows in train])
        return Dealt(train, test, names, True, no_rows)
    test = matched(dataset, train, dataset.test, np.arange(len(dataset.test)), rng)
    return Dealt(train, test, names, False, no_rows)
