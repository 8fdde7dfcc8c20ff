"""Equal rows: test rows that are training rows too, rows that repeat, rows that several clients hold.

Rows are equal if their decoded inputs and their targets are, so that pictures are compared by their pixels, whatever
their files are. Of the server's rows the inputs alone are compared, since it may have no targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.common.files import make_once
from florilegium.common.settings import folder
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation
from florilegium.partitions.sources.decode import decode_inputs
from florilegium.partitions.sources.table_files import read_parquet
from florilegium.partitions.spec import Dataset, Split

MANY = 0.01
"""Share of the test rows from which on their equality to training rows is a warning."""
PARTS = ("train", "test", "validation")
"""The splits of a dataset."""
REFUSE, DROP = "refuse", "drop"
_CHUNK = 4096
"""Rows that are read at a time."""
Kinds = NDArray[np.int64]
"""A number for each row, the same for equal rows."""


@dataclass(frozen=True)
class Duplicates:
    """How many rows of a federation are equal.

    Attributes:
        test_rows: test rows of all clients.
        in_own_training: those that equal a training row of the same client.
        in_other_training: those that equal one of another client, and none of their own.
        repeated_training: training rows that equal an earlier one of the same client.
        shared_training: training rows that equal one of another client.
        in_server: test rows whose inputs equal those of a row of the server.
        validation_rows: validation rows of all clients, if a part of the data holds them.
        validation_in_training: those that equal a training row.
    """

    test_rows: int
    in_own_training: int = 0
    in_other_training: int = 0
    repeated_training: int = 0
    shared_training: int = 0
    in_server: int = 0
    validation_rows: int = 0
    validation_in_training: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The counts that are not 0, for ``summary.json``; {} if no rows are equal."""
        sizes = ("test_rows", "validation_rows")
        found = {name: count for name, count in vars(self).items() if count and name not in sizes}
        return {"test_rows": self.test_rows, **found} if found else {}

    @property
    def leaks(self) -> Iterator[str]:
        """The sentences on test rows that a model may have learned."""
        leaked = self.in_own_training + self.in_other_training
        where = f"({self.in_own_training} of the same client, {self.in_other_training} of other clients alone)"
        for count, of, part, what in (
            (leaked, self.test_rows, "test", f"equal training rows {where}"),
            (self.in_server, self.test_rows, "test", "have inputs that equal the server's"),
            (self.validation_in_training, self.validation_rows, "validation", "equal training rows"),
        ):
            if count:
                yield f"{count} of {of} {part} rows ({count / of:.1%}) {what}"

    @property
    def warnings(self) -> list[str]:
        """The sentences on leaks of at least :data:`MANY` of the test rows, with what to do."""
        tested = max(self.in_own_training + self.in_other_training, self.in_server)
        if tested < max(1, MANY * self.test_rows) and self.validation_in_training < max(1, MANY * self.validation_rows):
            return []
        return [f"{said}, so that figures may be too good; see the key duplicates" for said in self.leaks]

    @property
    def rest(self) -> list[str]:
        """The sentences on equal training rows."""
        found = {
            "repeat one of the same client": self.repeated_training, "equal one of another client": self.shared_training
        }  # fmt: skip
        return [f"{count} training rows {what}" for what, count in found.items() if count]


def duplicates(settings: FederationSettings, federation: Federation, dataset: Dataset) -> Duplicates:
    """Return how many rows of a federation are equal.

    Raises:
        DataError: if test rows equal training rows or the server's, and ``duplicates`` is "refuse".
    """
    inputs, rows = _kinds(settings, dataset)
    test_part = "train" if federation.test_from_train else "test"
    held, tested = federation.train, federation.test
    owner, tester = (np.repeat(np.arange(len(federation)), shares.sizes) for shares in (held, tested))
    trained, tests = rows["train"][held.rows], rows.get(test_part, rows["train"])[tested.rows]
    count = 1 + max(int(part.max(initial=0)) for part in rows.values())
    pairs = _distinct(owner * count + trained)
    own = _among(tester * count + tests, pairs)
    # A row that several clients were given on purpose counts as its first owner's.
    _, first = np.unique(held.rows, return_index=True)
    owners = _distinct(owner[first] * count + trained[first]) % count
    shared = np.bincount(owners, minlength=count) > 1
    server = inputs["train"][federation.server]
    if "server" in inputs:
        server = np.concatenate([server, inputs["server"]])
    validated: Kinds = np.empty(0, np.int64)
    if federation.validation is not None and getattr(settings, "validation_fraction", 0.0) > 0:
        validated = rows["validation"][federation.validation.rows]
    found = Duplicates(
        len(tests), int(own.sum()), int((_among(tests, np.sort(trained)) & ~own).sum()), len(trained) - len(pairs),
        int(shared[trained[first]].sum()),
        int(np.isin(inputs.get(test_part, inputs["train"])[tested.rows], server).sum()),
        len(validated), int(np.isin(validated, trained).sum()),
    )  # fmt: skip
    if settings.duplicates == REFUSE and (said := [*found.leaks]):
        raise DataError(
            f"duplicates: {'; '.join(said)}. Remove them, or set duplicates = 'drop', which uses equal rows once"
        )
    return found


def distinct(settings: FederationSettings, dataset: Dataset) -> Dataset:
    """Return the dataset with the first of equal rows alone; training, test and validation rows come in this order.

    Raises:
        DataError: if no test row is left.
    """
    _, rows = _kinds(settings, dataset)
    parts = {part: split for part in PARTS if (split := getattr(dataset, part)) is not None}
    joined = np.concatenate([rows[part] for part in parts])
    first = np.zeros(len(joined), bool)
    first[np.unique(joined, return_index=True)[1]] = True
    if first.all():
        return dataset
    found, start = dict[str, Split](), 0
    for part, split in parts.items():
        kept = np.flatnonzero(first[start : start + len(split)])
        start += len(split)
        if not len(kept):
            raise DataError(f"duplicates: every {part} row of '{dataset.spec.name}' equals a training row")
        x: NDArray[Any] = np.asarray(split.x)[kept]
        if not dataset.spec.made:  # all processes of a machine share one copy
            path = _cached(settings, dataset, f"distinct-{part}.npy")
            x = np.load(make_once(path, partial(np.asarray, x), _save), mmap_mode="r")
        clients = {column: names[kept] for column, names in split.clients.items()}
        found[part] = Split(x, split.y[kept], clients, None if split.weights is None else split.weights[kept])
    return replace(
        dataset, train=found["train"], test=found.get("test"), validation=found.get("validation"),
        fingerprint=f"{dataset.fingerprint}-distinct",
    )  # fmt: skip


def _distinct(values: Kinds) -> Kinds:
    """Return the sorted values, each once; with many values this takes a fraction of the time of ``np.unique``."""
    found = np.sort(values)
    first = np.ones(len(found), bool)
    first[1:] = found[1:] != found[:-1]
    return found[first]


def _among(values: Kinds, known: Kinds) -> NDArray[np.bool_]:
    """Return which values are among the ``known`` ones, which are sorted."""
    places = np.searchsorted(known, values)
    found = places < len(known)
    found[found] = known[places[found]] == values[found]
    return found


def _cached(settings: FederationSettings, dataset: Dataset, name: str) -> Path:
    return settings.cache / "datasets" / f"{dataset.spec.name}-{dataset.fingerprint}-{name}"


def _save(array: NDArray[Any], path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def _kinds(settings: FederationSettings, dataset: Dataset) -> tuple[Mapping[str, Kinds], Mapping[str, Kinds]]:
    """Return the kinds of the rows of each part by inputs alone, and by inputs and targets ("server": of its file)."""
    splits = {part: split for part in PARTS if (split := getattr(dataset, part)) is not None}
    hashes = {part: _hashes(settings, dataset, part, split) for part, split in splits.items()}
    if settings.server_data:
        path = folder(settings.server_data)
        hashes["server"] = _hashed(decode_inputs(dataset.spec, read_parquet(path), str(path), dataset.vocabulary))
    inputs = _numbered(hashes)
    targets = _numbered({part: _comparable(split.y) for part, split in splits.items()})
    count = 1 + max(int(kinds.max(initial=0)) for kinds in targets.values())
    both = {part: inputs[part] * count + targets[part] for part in splits}
    return inputs, _numbered(both)


def _numbered(parts: Mapping[str, NDArray[Any]]) -> dict[str, Kinds]:
    _, numbers = np.unique(np.concatenate([*parts.values()]), return_inverse=True)
    ends = np.cumsum([len(part) for part in parts.values()])[:-1]
    return dict(zip(parts, np.split(numbers.reshape(-1), ends), strict=True))


def _hashes(settings: FederationSettings, dataset: Dataset, part: str, split: Split) -> NDArray[Any]:
    """Return a hash of each row's inputs, from the cache if they were computed before."""
    if dataset.spec.made:
        return _hashed(split.x)
    path = make_once(_cached(settings, dataset, f"kinds-{part}.npy"), lambda: _hashed(split.x), _save)
    return np.load(path)


def _hashed(x: NDArray[Any]) -> NDArray[Any]:
    # Of a million rows two that differ have the same 64 bits with a probability of 3·10⁻⁸.
    digests = []
    for first in range(0, len(x), _CHUNK):
        chunk = np.ascontiguousarray(x[first : first + _CHUNK])
        data, size = chunk.reshape(-1).view(np.uint8).data, chunk[0].nbytes
        digests += [blake2b(data[start : start + size], digest_size=8).digest() for start in range(0, len(data), size)]
    return np.frombuffer(b"".join(digests), np.uint64)


def _comparable(y: NDArray[Any]) -> NDArray[Any]:
    """Return targets as an array of one axis, whose entries are equal where the targets of rows are."""
    if y.ndim == 1:  # numbers are sorted several times as fast
        return y
    rows = np.ascontiguousarray(y).reshape(len(y), math.prod(y.shape[1:]))
    return rows.view(f"V{rows.itemsize * rows.shape[1]}").reshape(-1)
