"""Build a federation: which rows of a dataset each client holds. A pure function of its settings, cached on disk."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
from filelock import FileLock

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.files import write_atomically
from florilegium.common.memo import remembered
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import folder
from florilegium.partitions.asking import check_tests, split_of
from florilegium.partitions.canaries import plant
from florilegium.partitions.dealing import PARTITIONERS, deal, matched, partition
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.natural_clients import (
    HELD_BACK,
    check_names,
    client_column,
    has_names,
    hold_back,
    hold_out,
    rows_of,
    with_enough_tests,
)
from florilegium.partitions.partitioning import Partitioning
from florilegium.partitions.pooled import pooled
from florilegium.partitions.server_rows import choose_rows
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Canaries, Federation, Noise, Rows, Shares
from florilegium.partitions.spec import Dataset
from florilegium.partitions.split_table import SplitTable

_FORMAT = 7
"""Version of the format of cached index tables; increase it so that old ones are not used."""


def federate(settings: FederationSettings) -> tuple[Federation, Dataset]:
    """Return the federation of ``settings`` and its dataset, from the cache if it was built before.

    Raises:
        ConfigurationError: for an unknown dataset or partitioner, or keys that contradict each other.
        DataError: if the data are missing or not enough.
    """
    # Drop the fields of subclasses: the caches must depend on the federation's own keys alone.
    own = FederationSettings.model_construct(
        **{name: getattr(settings, name) for name in FederationSettings.model_fields}
    )
    return _federate(own, contents(own))


def contents(settings: FederationSettings) -> str:
    """Return a hash of what the partitioner depends on besides the keys: files that keys name, code of other packages.

    Raises:
        ConfigurationError: if there is no such partitioner, or a file cannot be read.
    """
    name = settings.partitioner
    partitioning, digest = PARTITIONERS[name], hashlib.sha256()
    for field in partitioning.files:
        path = getattr(settings.own_keys(partitioning.section()), field)
        if path:
            try:
                digest.update(folder(path).read_bytes())
            except OSError as error:
                raise ConfigurationError(f"{name}.{field}: {path} cannot be read ({error.strerror})") from error
    if reference := PARTITIONERS.reference(name):
        file = Path(str(getattr(sys.modules.get(reference.partition(":")[0]), "__file__", "")))
        digest.update(PARTITIONERS.origin(name).encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()


@remembered(4)
def _federate(settings: FederationSettings, contents: str) -> tuple[Federation, Dataset]:
    dataset = load_dataset(settings)
    key = settings.model_dump_json(exclude={"data_dir", "cache_dir", "embeddings"})
    key += contents + dataset.fingerprint + str(_FORMAT)
    if settings.mdm_params:
        from florilegium.partitions.mdm_params import (
            fingerprint,  # imports scipy, which takes half a second and is rarely needed
        )

        key += fingerprint(settings.mdm_params)
    name = f"{dataset.spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
    path = folder(settings.cache_dir) / "federations" / name
    table = split_of(settings, PARTITIONERS[settings.partitioner])
    if PARTITIONERS.reference(settings.partitioner).startswith("__main__:"):
        # Another notebook may have another partitioner of the same name.
        return build(settings, dataset), _arranged(settings, table, dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            _save(build(settings, dataset), path)
    return _restore(path), _arranged(settings, table, dataset)


def _arranged(settings: FederationSettings, table: SplitTable | None, dataset: Dataset) -> Dataset:
    """Return ``dataset`` as the federation counts its rows: with one pooled split if the partitioner divides both."""
    pools = PARTITIONERS[settings.partitioner].held_out > 0 if table is None else table.pooled
    return pooled(dataset, settings.cache_dir) if pools else dataset


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
                noise_levels=federation.noise.levels if federation.noise else np.zeros(0, np.float32),
                noise_seed=federation.noise.seed if federation.noise else 0,
                notes=federation.notes or "",
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
            Noise(file["noise_levels"], int(file["noise_seed"])) if len(file["noise_levels"]) else None,
            str(file["notes"]) or None,
        )


def build(settings: FederationSettings, dataset: Dataset) -> Federation:
    """Build the federation of ``settings`` from scratch, without the cache.

    A client's test examples have the class proportions of its training examples: it gets t·c test rows of a class of
    which it has c training examples. t ≤ 1 is the same for all clients and classes (of a domain, if there are domains):
    the largest value for which no test row is used twice. For a class that is rare in training, or has too few test
    rows, a client gets its share of the rows there are. Natural clients keep the test rows that carry their name. A
    partitioner with ``held_out`` divides training and test rows together and holds out a share of each client's rows. A
    split that is fixed as a whole decides itself.

    Raises:
        ConfigurationError: if keys contradict each other or the data.
        DataError: if there are not enough rows.
    """
    rng = numpy_generator(settings.seed, "federation", "rows")
    partitioning = PARTITIONERS[settings.partitioner]
    table = split_of(settings, partitioning)
    whole, dataset = dataset, _arranged(settings, table, dataset)
    train, test, names, test_from_train, server, notes = (
        _divided(settings, partitioning, dataset, rng) if table is None else _fixed(settings, table, whole, rng)
    )
    empty = [i for i, rows in enumerate(train) if len(rows) == 0]
    if empty:
        raise DataError(f"num-clients: client {empty[0]} would have no training example; use fewer clients")
    count = len(train)
    if partitioning.views and dataset.spec.kind != "image":
        raise ConfigurationError(
            f"partitioner: '{settings.partitioner}' changes images, but '{dataset.spec.name}' has none"
        )
    unseen = np.zeros(count, dtype=bool)
    unseen[rng.permutation(count)[: round(settings.unseen_fraction * count)]] = True
    seen = np.flatnonzero(~unseen)
    if len(seen) == 0:
        raise ConfigurationError("unseen-fraction: no client is left to train on; lower it or use more clients")
    labeled = np.ones(count, dtype=bool)
    labeled[rng.permutation(seen)[max(1, round(settings.labeled_fraction * len(seen))) :]] = False
    federation = Federation(
        Shares.of(train), Shares.of(test), test_from_train, unseen, labeled, np.zeros(count, np.float32),
        np.array(names), server, notes=notes,
    )  # fmt: skip
    federation = replace(federation, **partitioning.seen(settings))
    if table is None:  # a split that is fixed as a whole has been checked, and may share rows
        check_tests(settings, federation)
    return plant(federation, dataset, settings) if settings.canaries else federation


_Divided = tuple[list[Rows], list[Rows], list[str], bool, Rows, str | None]
"""Training rows, test rows and name of each client, whether test rows are of the training split, the server's rows, and
what is to be said of rows that are not used."""


def _divided(
    settings: FederationSettings, partitioning: Partitioning, dataset: Dataset, rng: np.random.Generator
) -> _Divided:
    """Let the partitioner divide the rows."""
    natural = partitioning.natural
    column = client_column(settings, dataset) if natural else None
    if settings.domain_column and natural:
        raise ConfigurationError(
            "domain-column: natural clients are not dealt out; leave it empty, or use client-column"
        )
    if settings.domain_column and partitioning.held_out:
        raise ConfigurationError(
            f"domain-column: '{settings.partitioner}' divides the rows of all domains together; leave it empty"
        )
    if settings.min_test_examples and settings.partitioner != "natural":
        raise ConfigurationError("min-test-examples: only partitioner = 'natural' leaves clients out; set it to 0")
    test_from_train = dataset.test is None or (column is not None and not has_names(dataset.test, column))
    train_rows = rng.permutation(len(dataset.train))
    train_rows, server = choose_rows(settings, dataset, train_rows)
    if partitioning.held_out:
        parts, _ = partition(settings, dataset, train_rows, None, rng)
        train, test = hold_out(parts, partitioning.held_out, rng)
        return train, test, [""] * len(parts), True, server, None
    if test_from_train and not natural:
        held = int(len(train_rows) * HELD_BACK)
        test_rows, train_rows = train_rows[:held], train_rows[held:]
    else:
        test_rows = np.arange(0 if dataset.test is None else len(dataset.test))
    named = column or (settings.domain_column if has_names(dataset.train, settings.domain_column) else None)
    notes = check_names(settings, dataset, named, train_rows) if named else None
    if column is not None and settings.min_test_examples:
        train_rows = with_enough_tests(settings, dataset, train_rows, column, test_from_train)
    test_split = dataset.train if test_from_train else dataset.test
    assert test_split is not None
    if column is None:
        train, test, names = deal(settings, dataset, train_rows, test_split, test_rows, rng)
        return train, test, names, test_from_train, server, notes
    train, groups = partition(settings, dataset, train_rows, column, rng)
    train, test = hold_back(train) if test_from_train else (train, rows_of(test_split, column, groups))
    return train, test, ["|".join(group) for group in groups], test_from_train, server, notes


_DIVIDING_KEYS = (
    "samples_per_client", "client_rows", "server_examples", "server_ood_examples", "domain_column", "min_test_examples",
)  # fmt: skip


def _fixed(settings: FederationSettings, table: SplitTable, dataset: Dataset, rng: np.random.Generator) -> _Divided:
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
        return train, list(table.test), names, table.pooled, no_rows, None
    if table.pooled or dataset.test is None:
        train, test = hold_back([rng.permutation(rows) for rows in train])
        return train, test, names, True, no_rows, None
    test = matched(dataset, train, dataset.test, np.arange(len(dataset.test)), rng)
    return train, test, names, False, no_rows, None
