"""Splits of other suites as split tables: the folders that PFLlib's generators and FL-bench's partitioner write.

PFLlib (``dataset/<Name>/``): ``config.json``, ``train/<i>.npz`` and ``test/<i>.npz``; each holds ``data``, a dict of
the examples ``x`` (n, channels, height, width), float32 in −1..1, and their classes ``y``. Rows are found by content.

FL-bench (``data/<name>/``): ``partition.pkl`` with ``data_indices``, for each client rows of torchvision's training
split followed by its test split, and ``all_stats.json`` with each client's number of examples of each class. The row
order of a copy of a dataset may differ from torchvision's. Where torchvision's own files lie in the folder, rows are
found by content; otherwise the class counts must agree.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.shares import Rows
from florilegium.partitions.sources.restricted_pickle import read_object, read_pickle
from florilegium.partitions.sources.torchvision_files import read_torchvision
from florilegium.partitions.spec import Dataset
from florilegium.partitions.split_table import SplitTable

SUITES = ("pfllib", "fl-bench")
VALIDATION = ("refuse", "train", "drop")
_TOLERANCE = 0.05
"""Largest distance of a pixel from a whole number after the normalisation is undone, in 0..255."""

Pixels = NDArray[np.uint8]


def read_foreign(suite: str, folder: Path, dataset: Dataset, validation: str) -> SplitTable:
    """Return the split in a folder of another suite, in pooled rows of ``dataset``.

    Args:
        suite: one of ``SUITES``.
        folder: the folder.
        dataset: the dataset that was divided.
        validation: for FL-bench's validation rows: "refuse" them, use them for "train"ing, or "drop" them.

    Raises:
        ConfigurationError: for another suite, or another word for ``validation``.
        DataError: if the folder is malformed, or is not a split of ``dataset``.
    """
    if suite not in SUITES:
        raise ConfigurationError(f"'{suite}' is not a suite whose splits are read. Known: {', '.join(SUITES)}")
    if validation not in VALIDATION:
        raise ConfigurationError(f"--validation: '{validation}' is unknown. Allowed: {', '.join(VALIDATION)}")
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder")
    parts = _pfllib(folder, dataset) if suite == "pfllib" else _fl_bench(folder, dataset, validation)
    sizes = (len(dataset.train), 0 if dataset.test is None else len(dataset.test))
    names = tuple(str(client) for client in range(len(parts["train"])))
    tests = tuple(parts["test"]) if any(map(len, parts["test"])) else None
    table = SplitTable(str(folder), names, tuple(parts["train"]), tests, True, False, dataset.spec.name, sizes)
    table.check()
    return table


class Finder:
    """Finds rows of a dataset by their content, each of several equal ones once.

    Args:
        dataset: an image dataset.

    Raises:
        DataError: if its inputs are not images.
    """

    def __init__(self, dataset: Dataset) -> None:
        if dataset.spec.kind != "image":
            raise DataError(f"rows of '{dataset.spec.name}' cannot be found by content: only those of images can")
        self.shape = dataset.train.x.shape[1:]
        self._free: defaultdict[bytes, list[int]] = defaultdict(list)
        first = 0
        for split in filter(None, (dataset.train, dataset.test)):
            for row, key in enumerate(_keys(np.asarray(split.x), split.y), first):
                self._free[key].append(row)
            first += len(split)
        for rows in self._free.values():
            rows.reverse()

    def find(self, pixels: Pixels, labels: Rows) -> Rows:
        """Return the row of each example (n, height, width, channels) of classes (n,); −1 if none is left."""
        found = [rows.pop() if (rows := self._free.get(key)) else -1 for key in _keys(pixels, labels)]
        return np.array(found, dtype=np.int64)


def _keys(pixels: NDArray[np.generic], labels: Rows) -> Iterator[bytes]:
    """Yield a hash of each image (height, width, channels) and its class."""
    for image, label in zip(pixels, labels, strict=True):
        yield hashlib.sha256(image.tobytes() + int(label).to_bytes(8, "big")).digest()


def _refuse_missing(folder: Path, dataset: Dataset, rows: Iterable[Rows]) -> None:
    together = np.concatenate([np.zeros(0, np.int64), *rows])
    if missing := int((together < 0).sum()):
        raise DataError(
            f"{folder}: {missing} of {len(together)} examples are not among the rows of '{dataset.spec.name}', or "
            "occur more often than there. Check --dataset, and that its copy has the original pixels (no lossy images)"
        )


# -------------------------------------------------------------------------------------------------- PFLlib


def _pfllib(folder: Path, dataset: Dataset) -> dict[str, list[Rows]]:
    config = _read_json(folder / "config.json")
    count = config.get("num_clients") if isinstance(config, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise DataError(f"{folder / 'config.json'}: num_clients: {count!r} is no number of clients")
    finder = Finder(dataset)
    parts: dict[str, list[Rows]] = {"train": [], "test": []}
    for client in range(count):
        for part, rows in parts.items():
            path = folder / part / f"{client}.npz"
            rows.append(finder.find(*_pfllib_examples(path, finder.shape)))
    _refuse_missing(folder, dataset, [*parts["train"], *parts["test"]])
    return parts


def _pfllib_examples(path: Path, shape: tuple[int, ...]) -> tuple[Pixels, Rows]:
    """Return pixels (n, height, width, channels) and classes of one client's file."""
    data = read_object(path, "data")
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise DataError(f"{path}: expected 'data' to be a dict with 'x' and 'y'")
    x, y = np.asarray(data["x"]), np.asarray(data["y"])
    if y.ndim != 1 or len(x) != len(y) or (len(y) and y.dtype.kind not in "iu"):
        raise DataError(
            f"{path}: expected as many whole numbers in 'y' as examples in 'x' (found: {x.shape}, {y.shape})"
        )
    if not len(y):
        return np.zeros((0, *shape), np.uint8), np.zeros(0, np.int64)
    if x.ndim != 4 or x.dtype.kind != "f" or (*x.shape[2:], x.shape[1]) != tuple(shape):
        raise DataError(
            f"{path}: expected 'x' to be images of {shape[2]} × {shape[0]} × {shape[1]} numbers (found: {x.dtype}, "
            f"shape {x.shape})"
        )
    exact = (x.astype(np.float64) * 0.5 + 0.5) * 255
    pixels = np.round(exact)
    if not (np.abs(exact - pixels) <= _TOLERANCE).all() or pixels.min() < 0 or pixels.max() > 255:
        raise DataError(f"{path}: 'x' does not hold pixels normalised with mean 0.5 and standard deviation 0.5")
    return pixels.astype(np.uint8).transpose(0, 2, 3, 1), y.astype(np.int64)


# ------------------------------------------------------------------------------------------------ FL-bench


def _fl_bench(folder: Path, dataset: Dataset, validation: str) -> dict[str, list[Rows]]:
    path = folder / "partition.pkl"
    content = read_pickle(path)
    clients = content.get("data_indices") if isinstance(content, dict) else None
    if not isinstance(clients, list) or not clients or not all(isinstance(client, dict) for client in clients):
        raise DataError(f"{path}: expected 'data_indices' to be a list with a dict of rows for each client")
    parts: dict[str, list[Rows]] = {"train": [], "test": []}
    total = len(dataset.train) + (0 if dataset.test is None else len(dataset.test))
    for client, found in enumerate(clients):
        rows = {part: _rows(found.get(part, []), f"{path}: client {client}, part '{part}'", total)
                for part in ("train", "val", "test")}  # fmt: skip
        if len(rows["val"]) and validation == "refuse":
            raise DataError(
                f"{path}: client {client} has {len(rows['val'])} validation rows; use them for training, or leave them "
                "out: --validation train, or drop"
            )
        if not len(rows["train"]):
            raise DataError(
                f"{path}: client {client} has no training rows, as FL-bench's --split user makes test clients; every "
                "client needs some here: make the partition with --split sample"
            )
        used = ["train", "val"] if validation == "train" else ["train"]
        parts["train"].append(np.concatenate([rows[part] for part in used]))
        parts["test"].append(rows["test"])
    raw = read_torchvision(folder, dataset.spec.name)
    if raw is not None:
        numbers = Finder(dataset).find(*raw)
        if len(numbers) != total:
            raise DataError(f"{folder}: torchvision has {len(numbers)} rows, '{dataset.spec.name}' has {total}")
        parts = {part: [numbers[rows] for rows in rows_of] for part, rows_of in parts.items()}
        _refuse_missing(folder, dataset, [*parts["train"], *parts["test"]])
        return parts
    _compare_counts(folder, dataset, clients)
    return parts


def _rows(found: object, where: str, total: int) -> Rows:
    rows = np.asarray(found)
    if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
        raise DataError(f"{where}: expected a list of row numbers (found: {found!r:.60})")
    rows = rows.astype(np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < total:
        raise DataError(f"{where}: rows {rows.min()}..{rows.max()}, but the dataset has {total}")
    return rows


def _compare_counts(folder: Path, dataset: Dataset, clients: list[Mapping[str, Any]]) -> None:
    """Check that each client has as many examples of each class as FL-bench counted.

    Raises:
        DataError: if the counts differ or are missing, so that rows may be counted in another order.
    """
    path = folder / "all_stats.json"
    stats = _read_json(path)
    splits = [split for split in (dataset.train, dataset.test) if split is not None]
    labels = np.concatenate([split.y for split in splits])
    for client, parts in enumerate(clients):
        rows = np.concatenate([np.asarray(rows, dtype=np.int64) for rows in parts.values()])
        classes, counts = np.unique(labels[rows], return_counts=True)
        found = {str(c): int(count) for c, count in zip(classes, counts, strict=True)}
        try:
            wanted = {str(c): int(count) for c, count in stats[str(client)]["y"].items() if count}
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"{path} has no class counts 'y' of client {client}") from error
        if found != wanted:
            raise DataError(
                f"{path}: client {client} has {wanted} examples of each class, but in the rows of "
                f"'{dataset.spec.name}' they are {found}: this copy has another row order than torchvision. Put "
                "torchvision's files into the folder, so that rows can be found by content"
            )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
