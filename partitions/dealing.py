"""Divide rows among clients: training rows by a partitioner, test rows in each client's own class proportions."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.plugins import Registry
from florilegium.common.seeds import entropy
from florilegium.common.settings import Section
from florilegium.partitions.asking import asked, check, failures_named, made
from florilegium.partitions.natural_clients import choose_natural, client_names
from florilegium.partitions.own_partitioners import OWN_PARTITIONERS
from florilegium.partitions.partitioning import Partitioning
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows
from florilegium.partitions.spec import Dataset, Split

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner

    from florilegium.partitions.partitioning import Make


def _read(found: Any, reference: str) -> Partitioning:
    """Return the partitioner that another package provides.

    It is a :class:`Partitioning`, a subclass of flwr-datasets' ``Partitioner``, or a function ``make``.

    Raises:
        TypeError: if ``found`` is none of these, or its parts are of other types.
    """
    from flwr_datasets.partitioner import Partitioner

    if isinstance(found, type) and issubclass(found, Partitioner):
        found = Partitioning((found.__doc__ or found.__name__).strip().splitlines()[0], _maker(found))
    elif inspect.isfunction(found):
        found = Partitioning((found.__doc__ or found.__name__).strip().splitlines()[0], found)
    if not isinstance(found, Partitioning):
        raise TypeError(
            "expected a Partitioning, a subclass of flwr_datasets.partitioner.Partitioner, or a function (settings, "
            f"rows, seed) (found: {found!r:.80})"
        )
    section = found.section()
    if not (isinstance(section, type) and issubclass(section, Section)):
        raise TypeError(f"its keys must be a subclass of Section (found: {section!r:.80})")
    if (found.make is None) == (found.split is None):
        raise TypeError("it must have either make or split")
    return found


def _maker(cls: type[Partitioner]) -> Make:
    """Return the function that makes partitioners of a class from the arguments that it takes.

    Raises:
        TypeError: if it requires other arguments than ``num_partitions``, ``partition_by`` and ``seed``.
    """
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    known = ("num_partitions", "partition_by", "seed")
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in known
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if unknown:
        raise TypeError(
            f"{cls.__name__} requires the argument '{unknown[0]}'; only {', '.join(known)} are given. Provide a "
            "function (settings, rows, seed) that returns a partitioner"
        )
    taken = {parameter.name for parameter in parameters}

    def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
        values = {"num_partitions": settings.num_clients, "partition_by": "label", "seed": seed}
        return cls(**{name: value for name, value in values.items() if name in taken})

    return make


PARTITIONERS: Registry[Partitioning] = Registry("partitioner", "a partitioner", OWN_PARTITIONERS, _read)
"""All partitioners by name: the suite's own, and those of other packages (:mod:`florilegium.common.plugins`)."""


def partitioner_table(name: str) -> str:
    """Return the name of the configuration table that holds a partitioner's own keys; "" if it has none.

    Raises:
        ConfigurationError: if there is no such partitioner, or its table has the name of one of the suite's own.
    """
    if not PARTITIONERS[name].section().model_fields:
        return ""
    if name in PARTITIONERS.own:
        return name
    table = PARTITIONERS[name].table or name.rpartition(":")[2].replace("_", "-").lower()
    if table in PARTITIONERS.own:
        raise ConfigurationError(
            f"partitioner: the keys of '{name}' would stand in table [{table}], which is the suite's own; set "
            "Partitioning.table"
        )
    return table


def file_keys(partitioner: str) -> list[str]:
    """Return the flat keys of a partitioner whose values are paths of files; empty for an unknown partitioner."""
    if partitioner not in PARTITIONERS:
        return []
    return [f"{partitioner_table(partitioner)}.{name}" for name in PARTITIONERS[partitioner].files]


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
        test += matched(dataset, dealt, test_split, tests, rng)
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
) -> tuple[list[Rows], list[list[str]]]:
    """Divide the training ``rows`` among clients; return each client's rows and the natural clients it consists of.

    Args:
        settings: settings of the federation.
        dataset: the data.
        rows: rows of its training split to divide.
        column: column of natural clients' names; None if a partitioner makes the clients.
        rng: generator that chooses natural clients if not all of them take part.
        domain: domain that the rows belong to; "" without domains.

    Raises:
        ConfigurationError: if ``num-clients`` is 0 without natural clients, or the partitioner cannot divide numbers.
        DataError: if there are not enough rows, or the partitioner cannot divide them.
    """
    from datasets import Dataset as HubDataset
    from datasets import disable_progress_bars

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
    if n == 0 and column is None:
        raise ConfigurationError(
            "num-clients: 0 (all there are) goes with partitioner = 'natural', 'grouped-natural' and 'file' only; give "
            "a number"
        )
    if n > len(rows):
        raise DataError(f"num-clients: {n} clients cannot share {len(rows)} training examples of '{settings.dataset}'")
    if m and column is None and not partitioning.chooses_rows:
        if n * m > len(rows):
            raise DataError(
                f"samples-per-client: {n} clients with {m} samples each need {n * m} training examples; "
                f"'{settings.dataset}' has {len(rows)}"
            )
        rows = rows[: n * m]
    table: dict[str, NDArray[Any]] = {"row": rows, "label": label_of(dataset, rows)}
    if column is not None:
        table["client"] = client_names(dataset.train, column)[rows]
    with failures_named(settings):
        table |= partitioning.extra(settings, dataset, rows)
    purpose = ("federation", domain) if domain else ("federation",)
    seed = entropy(settings.seed, *purpose) % 2**32
    partitioner = made(settings, partitioning, HubDataset.from_dict(table), seed)
    natural = column is not None
    chosen, parts = asked(
        settings, partitioner, lambda there: choose_natural(settings, there, rng) if natural else np.arange(there)
    )
    check(settings, partitioning, rows, parts)
    if column is None:
        return parts, [[]] * len(parts)
    if m:
        parts = [part[:m] for part in parts]
    if hasattr(partitioner, "partition_id_to_natural_ids"):
        return parts, [partitioner.partition_id_to_natural_ids[int(i)] for i in chosen]
    return parts, [[partitioner.partition_id_to_natural_id[int(i)]] for i in chosen]


def label_of(dataset: Dataset, rows: Rows) -> NDArray[Any]:
    """Return the stratum of each training row or, without strata, its first target."""
    task, y = dataset.spec.learned, dataset.train.y[rows]
    return task.strata(y) if task.num_strata else y.reshape(len(y), -1)[:, 0]


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
