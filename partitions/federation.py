"""A federation: which rows of a dataset each client holds. A pure function of its settings, cached on disk."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from common.errors import ConfigurationError, DataError, nearest
from common.files import write_atomically
from common.seeds import entropy, numpy_generator
from common.settings import folder
from partitions.datasets import Dataset, Split, find_spec, load
from partitions.server_rows import choose_rows
from partitions.settings import FederationSettings

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset
    from flwr_datasets.partitioner import Partitioner

    Make = Callable[[FederationSettings, HubDataset, int], Partitioner]

Rows = NDArray[np.int64]

PARTITIONERS: Mapping[str, str] = {
    "iid": "partitions.iid",
    "classes": "partitions.classes",
    "dirichlet": "partitions.dirichlet",
    "rotation": "partitions.rotation",
    "natural": "partitions.natural",
    "mdm": "partitions.mdm",
}
"""The module of each kind of heterogeneity; imported when used, since flwr-datasets takes seconds to import."""

RARE = 0.001
"""A class with a smaller share of the training examples does not limit the size of the test parts."""

_FORMAT = 4
"""Version of the cached index tables; a new number makes old ones unused."""

HELD_BACK = 0.2
"""Share of the rows that becomes the test part where the source has no test split."""


@dataclass(frozen=True)
class Shares:
    """One list of row numbers per client, stored end to end: client i has ``rows[offsets[i]:offsets[i + 1]]``."""

    rows: Rows
    offsets: Rows

    @staticmethod
    def of(parts: list[Rows]) -> Shares:
        """Store ``parts``, one array of row numbers per client."""
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return Shares(np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64), offsets)

    def __getitem__(self, client: int) -> Rows:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Rows:
        """Number of rows of each client."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Canaries:
    """Training examples with wrong classes (:mod:`partitions.canaries`), c of them.

    Attributes:
        clients: whose each is, or would be, (c,).
        rows: its row of the training split, (c,).
        classes: its wrong class, (c,).
        present: whether it takes part, bool (c,).
    """

    clients: Rows
    rows: Rows
    classes: Rows
    present: NDArray[np.bool_]


_NONE = np.zeros(0, np.int64)
_NO_CANARIES = Canaries(_NONE, _NONE, _NONE, np.zeros(0, bool))


@dataclass(frozen=True)
class Federation:
    """Who holds what.

    Attributes:
        train: rows of the training split per client.
        test: rows of the test split per client (of the training split where ``test_from_train``).
        test_from_train: whether test rows were held back from the training split.
        unseen: clients held back to measure generalisation to new clients, bool (n,).
        labeled: clients whose labels may be used in training, bool (n,).
        angles: rotation of each client's images in degrees, (n,); zeros where there is none.
        names: the natural name of each client, or its domain ("" where there is none).
        server: rows of the training split that the server holds, and no client.
        canaries: examples for an audit.
    """

    train: Shares
    test: Shares
    test_from_train: bool
    unseen: NDArray[np.bool_]
    labeled: NDArray[np.bool_]
    angles: NDArray[np.float32]
    names: NDArray[np.str_]
    server: Rows
    canaries: Canaries = _NO_CANARIES

    def __len__(self) -> int:
        return len(self.unseen)

    def class_counts(self, dataset: Dataset, part: str = "train") -> Rows:
        """Return how many examples of each class each client holds in ``part``, shape (n, C)."""
        if dataset.spec.kind == "regression":
            return (self.train if part == "train" else self.test).sizes[:, None]
        classes = dataset.spec.classes
        return np.stack(
            [
                np.bincount(split.y[rows], minlength=classes)
                for split, rows in (client_rows(self, dataset, i, part) for i in range(len(self)))
            ]
        )


def client_rows(federation: Federation, dataset: Dataset, client: int, part: str) -> tuple[Split, Rows]:
    """Return the split that ``part`` ("train" or "test") of a client comes from, and its rows in it."""
    if part == "train":
        return dataset.train, federation.train[client]
    split = dataset.train if federation.test_from_train else dataset.test
    assert split is not None
    return split, federation.test[client]


def federate(settings: FederationSettings) -> tuple[Federation, Dataset]:
    """Return the federation of ``settings`` and its dataset, from the cache where it was made before.

    Raises:
        ConfigurationError: for an unknown dataset or partitioner, or keys that do not go together.
        DataError: if the data are missing or not enough.
    """
    # One object per settings value, whatever subclass carries it: caches are keyed on these fields alone.
    return _federate(
        FederationSettings.model_construct(
            **{name: getattr(settings, name) for name in FederationSettings.model_fields}
        )
    )


@lru_cache(maxsize=4)
def _federate(settings: FederationSettings) -> tuple[Federation, Dataset]:
    if settings.partitioner not in PARTITIONERS:
        raise ConfigurationError(
            f"partitioner: '{settings.partitioner}' is not a partitioner{nearest(settings.partitioner, PARTITIONERS)} "
            f"Known: {', '.join(PARTITIONERS)}."
        )
    dataset = _dataset(settings)
    key = settings.model_dump_json(exclude={"data_dir", "cache_dir", "embeddings"}) + dataset.fingerprint + str(_FORMAT)
    if settings.mdm_params:
        from partitions.mdm_params import fingerprint  # scipy, which few need, takes half a second to import

        key += fingerprint(settings.mdm_params)
    name = f"{dataset.spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
    path = folder(settings.cache_dir) / "federations" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            _save(build(settings, dataset), path)
    return _restore(path), dataset


def _dataset(settings: FederationSettings) -> Dataset:
    spec = find_spec(settings.dataset)
    if spec.made:
        module, _, function = spec.made.partition(":")
        made: Dataset = getattr(importlib.import_module(module), function)(settings, spec)
        return made
    return load(settings.dataset, settings.data_dir, settings.cache_dir, settings.embeddings)


def _save(federation: Federation, path: Path) -> None:
    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(
                file,
                train_rows=federation.train.rows,
                train_offsets=federation.train.offsets,
                test_rows=federation.test.rows,
                test_offsets=federation.test.offsets,
                test_from_train=federation.test_from_train,
                unseen=federation.unseen,
                labeled=federation.labeled,
                angles=federation.angles,
                names=federation.names,
                server=federation.server,
                canaries=np.stack(astuple(federation.canaries)),
            )

    write_atomically(path, save)


def _restore(path: Path) -> Federation:
    with np.load(path, allow_pickle=False) as file:
        clients, rows, classes, present = file["canaries"]
        return Federation(
            Shares(file["train_rows"], file["train_offsets"]),
            Shares(file["test_rows"], file["test_offsets"]),
            bool(file["test_from_train"]),
            file["unseen"],
            file["labeled"],
            file["angles"],
            file["names"],
            file["server"],
            Canaries(clients, rows, classes, present.astype(bool)),
        )


def build(settings: FederationSettings, dataset: Dataset) -> Federation:
    """Make the federation of ``settings`` anew.

    A client's test examples follow its own class mix: of class k it gets t·c rows of the test split, c being its
    number of training examples of that class, with one t ≤ 1 for all clients and classes (of a domain, where there
    are domains), the largest for which no test row is used twice. (Of a class that is rare in training, or has fewer
    test rows, it gets its share of what there is.) Natural clients keep the test rows that carry their name.
    """
    rng = numpy_generator(settings.seed, "federation", "rows")
    natural = settings.partitioner == "natural"
    column = _client_column(settings, dataset) if natural else None
    if settings.domain_column and natural:
        raise ConfigurationError(
            "domain-column: natural clients are not dealt out; leave it empty, or use client-column"
        )
    if settings.min_test_examples and not natural:
        raise ConfigurationError("min-test-examples: only partitioner = 'natural' leaves clients out; set it to 0")
    test_from_train = dataset.test is None or (column is not None and not _names_clients(dataset.test, column))
    train_rows = rng.permutation(len(dataset.train))
    train_rows, server = choose_rows(settings, dataset, train_rows)
    if test_from_train and not natural:
        held = int(len(train_rows) * HELD_BACK)
        test_rows, train_rows = train_rows[:held], train_rows[held:]
    else:
        test_rows = np.arange(0 if dataset.test is None else len(dataset.test))
    if column is not None and settings.min_test_examples:
        train_rows = _with_enough_tests(settings, dataset, train_rows, column, test_from_train)
    test_split = dataset.train if test_from_train else dataset.test
    assert test_split is not None
    if column is None:
        train, test, names = _deal(settings, dataset, train_rows, test_split, test_rows, rng)
    else:
        train, names = _partition(settings, dataset, train_rows, column, rng)
        if test_from_train:
            train, test = _hold_back(train)
        else:
            values = _owners(test_split, column)
            order = np.argsort(values, kind="stable")
            values = values[order]
            test = [order[np.searchsorted(values, n, "left") : np.searchsorted(values, n, "right")] for n in names]
    empty = [i for i, rows in enumerate(train) if len(rows) == 0]
    if empty:
        raise DataError(f"num-clients: client {empty[0]} would have no training example; use fewer clients")
    count = len(train)
    angles = np.zeros(count, np.float32)
    if settings.partitioner == "rotation":
        from partitions.rotation import draw_angles

        if dataset.spec.kind != "image":
            raise ConfigurationError(f"partitioner: 'rotation' turns images, but '{dataset.spec.name}' has none")
        angles = draw_angles(settings)
    unseen = np.zeros(count, dtype=bool)
    unseen[rng.permutation(count)[: round(settings.unseen_fraction * count)]] = True
    seen = np.flatnonzero(~unseen)
    if len(seen) == 0:
        raise ConfigurationError("unseen-fraction: no client is left to train on; lower it or use more clients")
    labeled = np.ones(count, dtype=bool)
    labeled[rng.permutation(seen)[max(1, round(settings.labeled_fraction * len(seen))) :]] = False
    federation = Federation(
        Shares.of(train), Shares.of(test), test_from_train, unseen, labeled, angles, np.array(names), server
    )
    if not settings.canaries:
        return federation
    from partitions.canaries import plant

    return plant(federation, dataset, settings)


def _with_enough_tests(
    settings: FederationSettings, dataset: Dataset, rows: Rows, column: str, test_from_train: bool
) -> Rows:
    """Return the training ``rows`` of natural clients that will have ``min-test-examples`` test examples."""
    owners = _owners(dataset.train, column)
    if test_from_train:
        names, counts = np.unique(owners, return_counts=True)
        counts = np.minimum(counts, settings.samples_per_client or counts)
        counts = counts - np.array([_kept(int(count)) for count in counts])
    else:
        assert dataset.test is not None
        names, counts = np.unique(_owners(dataset.test, column), return_counts=True)
    left = rows[np.isin(owners[rows], names[counts >= settings.min_test_examples])]
    if len(left) == 0:
        raise DataError(
            f"min-test-examples: no client of '{settings.dataset}' has {settings.min_test_examples} test examples; the "
            f"most are {counts.max()}"
        )
    return left


def _client_column(settings: FederationSettings, dataset: Dataset) -> str:
    """Return the column that names natural clients: ``client-column``, or the dataset's first one."""
    columns = [c for c in dataset.spec.client_columns if c in dataset.train.clients]
    if not columns:
        raise ConfigurationError(
            f"partitioner: 'natural' needs a column of client names; '{settings.dataset}' has none"
        )
    unknown = [c for c in settings.client_column.split("+") if c not in columns] if settings.client_column else []
    if unknown:
        raise ConfigurationError(
            f"client-column: '{unknown[0]}' is not one of {', '.join(columns)}, the columns of '{settings.dataset}' "
            f"that name clients; several are joined by '+'{nearest(unknown[0], columns)}"
        )
    return settings.client_column or columns[0]


def _names_clients(split: Split, column: str) -> bool:
    return set(column.split("+")) <= split.clients.keys()


def _owners(split: Split, column: str) -> NDArray[np.str_]:
    """Return the name of each row's client, (n,): a column's, or those of several joined by "+"."""
    first, *others = (split.clients[part] for part in column.split("+"))
    for other in others:
        first = np.char.add(np.char.add(first, "+"), other)
    return np.asarray(first)


def _deal(
    settings: FederationSettings,
    dataset: Dataset,
    rows: Rows,
    test_split: Split,
    test_rows: Rows,
    rng: np.random.Generator,
) -> tuple[list[Rows], list[Rows], list[str]]:
    """Share training and test rows out; return each client's, and the name of its domain.

    With ``domain-column``, each domain's rows are shared out over an equal number of clients.
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
            dealt, _ = _partition(each, dataset, own, None, rng, domain)
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


def _partition(
    settings: FederationSettings,
    dataset: Dataset,
    rows: Rows,
    column: str | None,
    rng: np.random.Generator,
    domain: str = "",
) -> tuple[list[Rows], list[str]]:
    """Share the training ``rows`` out; return each client's rows and its natural name."""
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
        table["client"] = _owners(dataset.train, column)[rows]
    if hasattr(module, "columns"):
        table |= module.columns(settings, dataset, rows)
    make: Make = module.make
    purpose = ("federation", domain) if domain else ("federation",)
    partitioner = make(settings, hub := HubDataset.from_dict(table), entropy(settings.seed, *purpose) % 2**32)
    partitioner.dataset = hub
    try:
        chosen = np.arange(partitioner.num_partitions)
        if column is not None:
            chosen = _choose_natural(settings, len(chosen), rng)
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


def _choose_natural(settings: FederationSettings, available: int, rng: np.random.Generator) -> Rows:
    if settings.num_clients > available:
        raise DataError(
            f"num-clients: '{settings.dataset}' has only {available} natural clients, not "
            f"{settings.num_clients}; 0 takes all"
        )
    return np.sort(rng.permutation(available)[: settings.num_clients or available])


def _kept(count: int) -> int:
    """Return how many of a client's ``count`` examples remain for training where a share is held back."""
    return count - round(count * HELD_BACK)


def _hold_back(train: list[Rows]) -> tuple[list[Rows], list[Rows]]:
    """Move the last fifth of every client's rows to its test part; a client with one row keeps it for training."""
    cuts = [_kept(len(rows)) for rows in train]
    pairs = [(rows[:cut], rows[cut:]) for rows, cut in zip(train, cuts, strict=True)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _matched(
    train_y: Rows, train: list[Rows], test_y: Rows, test_rows: Rows, classes: int, rng: np.random.Generator
) -> list[Rows]:
    """Draw test rows in each client's own class mix, without overlap (see :func:`build`)."""
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
