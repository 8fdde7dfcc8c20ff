"""Index tables of a federation: which rows of a dataset's splits each client and the server hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.partitions.spec import Dataset, Split

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """One list of row numbers per client, stored end to end: client i has ``rows[offsets[i]:offsets[i + 1]]``."""

    rows: Rows
    offsets: Rows

    @staticmethod
    def of(parts: Sequence[Rows]) -> Shares:
        """Store ``parts``, one array of row numbers per client."""
        rows = np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        return Shares.sized(rows, np.array([len(part) for part in parts], np.int64))

    @staticmethod
    def sized(rows: Rows, sizes: Rows) -> Shares:
        """Give the first client the first ``sizes[0]`` of the ``rows``, the next one those that follow, and so on."""
        return Shares(rows, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    @staticmethod
    def joined(parts: Sequence[Shares]) -> Shares:
        """Return the clients of all parts, one part after the other."""
        return Shares.sized(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "sizes")))

    @staticmethod
    def between(rows: Rows, starts: Rows, ends: Rows) -> Shares:
        """Give each client i ``rows[starts[i]:ends[i]]``."""
        found = Shares.sized(rows[:0], ends - starts)
        places = np.arange(found.offsets[-1]) + np.repeat(starts - found.offsets[:-1], found.sizes)
        return Shares(rows[places], found.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Rows]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, client: int) -> Rows:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Rows:
        """Number of rows of each client."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> Rows:
        """The client that holds each of ``rows``."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def ordered(self) -> Shares:
        """Return the same rows, those of each client in ascending order."""
        return Shares(self.rows[np.lexsort((self.rows, self.owners))], self.offsets)

    def cut(self, counts: Rows) -> tuple[Shares, Shares]:
        """Return the first ``counts[i]`` rows of each client i, and the rest of its rows."""
        middle = self.offsets[:-1] + counts
        return Shares.between(self.rows, self.offsets[:-1], middle), Shares.between(self.rows, middle, self.offsets[1:])


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

    train: Shares
    test: Shares
    names: Sequence[str]
    test_from_train: bool
    server: Rows
    notes: str | None = None


@dataclass(frozen=True)
class Canaries:
    """Training examples with wrong classes (:mod:`florilegium.partitions.canaries`), c of them.

    Attributes:
        clients: client that holds each canary, or would hold it, (c,).
        rows: row of each canary in the training split, (c,).
        classes: wrong class of each canary, (c,).
        present: whether each canary takes part in training, bool (c,).
    """

    clients: Rows
    rows: Rows
    classes: Rows
    present: NDArray[np.bool_]


@dataclass(frozen=True)
class Noise:
    """Gaussian noise in the images of n clients (:mod:`florilegium.partitions.partitioners.noise`).

    Attributes:
        levels: standard deviation of each client's noise, as a share of the largest pixel value, (n,).
        seed: seed of the noise, 0..2⁶³ − 1.
    """

    levels: NDArray[np.float32]
    seed: int


_NONE = np.zeros(0, np.int64)
_NO_CANARIES = Canaries(_NONE, _NONE, _NONE, np.zeros(0, bool))


@dataclass(frozen=True)
class Federation:
    """Which rows of a dataset each of n clients and the server hold.

    Attributes:
        train: rows of the training split per client.
        test: rows of the test split per client (of the training split if ``test_from_train``).
        test_from_train: whether test rows were held out from the training split.
        unseen: clients that take no part in training, to measure generalisation to new clients, bool (n,).
        labeled: clients whose labels may be used in training, bool (n,).
        angles: rotation of each client's images in degrees, (n,); 0 without rotation.
        names: natural name of each client, or its domain; "" without either.
        server: rows of the training split that only the server holds.
        canaries: canaries for a privacy audit, if any.
        noise: noise in the clients' images; None without noise.
        notes: what the user should know of rows that are not used, in sentences; None if there is nothing to say.
        validation: rows of the validation split per client; None if there is none.
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
    noise: Noise | None = None
    notes: str | None = None
    validation: Shares | None = None

    def __len__(self) -> int:
        return len(self.unseen)

    def save(self, path: Path) -> None:
        """Write the federation to ``path``, in NumPy's ``.npz`` format."""
        arrays: dict[str, Any] = {}
        for name, value in vars(self).items():
            parts = vars(value) if is_dataclass(value) else {"": value}
            arrays |= {f"{name}.{part}": array for part, array in parts.items() if array is not None}
        with path.open("wb") as file:  # if given a path, NumPy would append ".npz"
            np.savez(file, **arrays)

    @staticmethod
    def load(path: Path) -> Federation:
        """Return the federation that :meth:`save` wrote to ``path``."""
        found: dict[str, dict[str, Any]] = {field.name: {} for field in fields(Federation)}
        with np.load(path, allow_pickle=False) as file:
            for key, array in file.items():
                name, _, part = key.partition(".")
                found[name][part] = array if array.ndim else array.item()
        kinds: dict[str, Any] = {
            "train": Shares,
            "test": Shares,
            "validation": Shares,
            "canaries": Canaries,
            "noise": Noise,
        }
        return Federation(**{n: kinds[n](**v) if n in kinds else v[""] for n, v in found.items() if v})

    def class_counts(self, dataset: Dataset, part: str = "train") -> Rows:
        """Return how many examples of each stratum (class) each client holds in ``part``, (n, C); (n, 1) without."""
        task = dataset.spec.learned
        shares, split = held(self, dataset, part)
        return counted(shares, task.strata(split.y), max(1, task.num_strata))


def counted(shares: Shares, kinds: Rows, count: int) -> Rows:
    """Return how many rows of each kind each client holds, (n, count).

    Args:
        shares: rows of n clients.
        kinds: kind of every row, 0..count − 1.
        count: number of kinds.
    """
    cells = shares.owners * count + kinds[shares.rows]
    return np.bincount(cells, minlength=len(shares) * count).reshape(len(shares), count)


def held(federation: Federation, dataset: Dataset, part: str) -> tuple[Shares, Split]:
    """Return the rows of each client in ``part`` ("train", "test" or "validation"), and the split that they are of."""
    if part == "validation":
        assert dataset.validation is not None
        assert federation.validation is not None
        return federation.validation, dataset.validation
    if part == "train":
        return federation.train, dataset.train
    split = dataset.train if federation.test_from_train else dataset.test
    assert split is not None
    return federation.test, split


def client_rows(federation: Federation, dataset: Dataset, client: int, part: str) -> tuple[Split, Rows]:
    """Return the split that ``part`` ("train", "test" or "validation") of a client comes from, and its rows in it."""
    shares, split = held(federation, dataset, part)
    return split, shares[client]
