"""Divide the rows of a dataset among natural clients, or clients that a partitioner makes; choose their test rows."""

from __future__ import annotations

import numpy as np

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.asking import ask
from florilegium.partitions.held_out import HELD_BACK, check_apart, hold_back, hold_out, matched
from florilegium.partitions.natural_clients import (
    Natural,
    check_names,
    client_column,
    client_names,
    domains,
    has_names,
    rows_of,
    with_enough_tests,
)
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.server_rows import choose_rows
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Dealt, Shares
from florilegium.partitions.spec import Dataset


def divided(settings: FederationSettings, dataset: Dataset, rng: np.random.Generator) -> Dealt:
    """Divide the rows: choose those for the clients, let the partitioner divide each group of them, add test rows.

    A group is all rows or, with ``domain-column``, those of a domain; each domain has the same number of clients, which
    have its name. Natural clients, or groups of them, get the test rows that carry their name.

    Raises:
        ConfigurationError: if keys contradict each other or the data.
        DataError: if there are not enough rows.
    """
    partitioning = PARTITIONERS[settings.partitioner]
    column = client_column(settings, dataset) if partitioning.natural else settings.domain_column
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
    natural = partitioning.natural and not partitioning.held_out
    split, tests = dataset.test, np.arange(0 if dataset.test is None else len(dataset.test))
    if split is None and not natural and not partitioning.held_out:
        held = int(len(rows) * HELD_BACK)
        split, tests, rows = dataset.train, rows[:held], rows[held:]
    notes = check_names(settings, dataset, column, rows) if has_names(dataset.train, column) else None
    if natural and (split is None or not has_names(split, column)):
        split = None  # some of each client's own rows are held back
    if settings.min_test_examples:
        rows = with_enough_tests(settings, dataset, rows, column, split is None)
    owners = client_names(dataset.train, column) if natural else None
    groups = {"": (rows, tests)}
    if settings.domain_column:
        assert split is not None
        groups = domains(settings, dataset, rows, split, tests)
    each = settings.model_copy(update={"num_clients": settings.num_clients // len(groups)})
    trains, tested, named = list[Shares](), list[Shares](), list[str]()
    for domain, (own, pool) in groups.items():
        try:
            train, clients = ask(each, dataset, own, owners, rng, domain)
        except DataError as error:
            raise DataError(f"domain '{domain}': {error}" if domain else str(error)) from error
        if clients is not None and split is not None:
            test = rows_of(split, column, clients)
        elif natural:
            train, test = hold_back(train)
        elif split is None:
            train, test = hold_out(train, partitioning.held_out, rng)
        else:
            test = matched(dataset, train, split, pool, rng)
        trains.append(train)
        tested.append(test)
        named += [domain] * len(train) if clients is None else clients.joined
    from_train = split is not dataset.test or split is None
    dealt = Dealt(Shares.joined(trains), Shares.joined(tested), named, from_train, server, notes)
    check_apart(settings, dealt)
    return dealt


def validation_of(settings: FederationSettings, dataset: Dataset, dealt: Dealt) -> Shares | None:
    """Return the validation rows of each client; None if the dataset has no such part, or the clients are of domains.

    Natural clients have the rows that carry their name. For others rows are drawn in their own class proportions, as
    test rows are.
    """
    split = dataset.validation
    if split is None or settings.domain_column:
        return None
    if PARTITIONERS[settings.partitioner].natural and any(dealt.names):
        column = client_column(settings, dataset)
        if has_names(split, column):
            single = settings.partitioner == "natural"
            return rows_of(split, column, Natural.of([[name] if single else name.split("|") for name in dealt.names]))
    rng = numpy_generator(settings.seed, "federation", "validation")
    return matched(dataset, dealt.train, split, np.arange(len(split)), rng)
