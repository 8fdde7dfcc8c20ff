"""Encode the rows of a described dataset: decoded once a machine to arrays on disk, memory-mapped by every process."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from florilegium.common.files import make_once, write_text
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.sources import folders, hub
from florilegium.partitions.sources.decode import decode, digits, fitted
from florilegium.partitions.sources.source import Source
from florilegium.partitions.sources.store import PARTS, check_splits, has_splits, map_splits, stamps, write_splits
from florilegium.partitions.sources.table_files import read_parquet
from florilegium.partitions.sources.words import Vocabulary, vocabulary
from florilegium.partitions.spec import Dataset, DatasetSpec, Split

_FORMAT = 4
"""Version of the format of decoded datasets in the cache; increase it so that old caches are not used."""


@dataclass(frozen=True)
class _Rows:
    """The rows of a described dataset: the files of which a change is noticed, and what decodes them."""

    files: Sequence[Path]
    decoded: Callable[[], Mapping[str, Split]]


def encoded(spec: DatasetSpec, source: Source) -> Dataset:
    """Return the dataset that ``spec`` describes: from a local folder, else from the hub.

    The first call on a machine decodes it into the cache; later calls, in any process, memory-map the arrays from
    there. Datasets of words need a file of embeddings (:mod:`florilegium.partitions.sources.words`).

    Raises:
        ConfigurationError: if it needs embeddings, and none are named.
        DataError: if its files are missing or do not fit its schema.
    """
    if spec.folder and has_splits(Path(spec.folder)):
        return _ready(spec, Path(spec.folder))
    path = local_folder(spec, source)
    words = vocabulary(source.embeddings, str(source.cache), spec.shape[1]) if spec.kind == "words" else None
    rows = _rows(spec, path, words)
    described = [repr(spec), *spec.further] if DATASETS.own.get(spec.name) is not spec else []
    facts = [_FORMAT, spec.name, spec.hub, stamps(rows.files), *([words.name] if words else []), *described]
    fingerprint = _hash(facts)
    cache = source.cache / "datasets" / f"{spec.name}-{fingerprint}"

    def make() -> None:
        splits = rows.decoded()
        if spec.derived:
            module, _, function = spec.derived.partition(":")
            splits = getattr(importlib.import_module(module), function)(splits)
        write_splits(cache, splits)
        write_text(cache / "complete", "")

    make_once(cache / "complete", make, cache / "lock")
    splits = map_splits(cache)
    return Dataset(spec, splits["train"], splits.get("test"), fingerprint, words)


def local_folder(spec: DatasetSpec, source: Source) -> Path | None:
    """Return the local folder of a dataset's rows; None if there is none, or it needs none.

    Raises:
        DataError: if the dataset is to be read from ``data-dir``, and is not there.
    """
    if spec is DATASETS.own["digits"] or spec.made:
        return None
    return Path(spec.folder) if spec.folder else source.local_copy(spec.source or spec.name)


def _ready(spec: DatasetSpec, path: Path) -> Dataset:
    """Map a folder of decoded arrays, which a schema describes."""
    splits = map_splits(path)
    check_splits(path, spec, splits)
    # The folder is named by a hash of its content or of its source.
    fingerprint = _hash([path.name, repr(spec), *spec.further, stamps(sorted(path.glob("*.npy")))])
    return Dataset(spec, splits["train"], splits.get("test"), fingerprint)


def _rows(spec: DatasetSpec, path: Path | None, words: Vocabulary | None) -> _Rows:
    """Return the rows of a dataset, in its local folder ``path`` or else on the hub."""
    if spec is DATASETS.own["digits"]:  # another dataset may have this name too
        return _Rows([], digits)
    if path is None:
        parts = PARTS if spec.test else ("train",)
        return _Rows([], lambda: {p: decode(spec, hub.load(spec, p), f"{spec.hub} ({p})", words) for p in parts})
    if (path / "train.parquet").is_file():
        files = {part: file for part in PARTS if (file := path / f"{part}.parquet").exists()}
        return _Rows(
            sorted(path.glob("*.parquet")),
            lambda: {part: decode(spec, read_parquet(file), str(file), words) for part, file in files.items()},
        )
    unread = folders.found(path)
    return _Rows(
        unread.files,
        lambda: {part: fitted(spec, table, f"{path}, {part}") for part, table in unread.read()[0].items()},
    )


def _hash(facts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
