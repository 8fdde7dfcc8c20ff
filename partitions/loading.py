"""Load a dataset: what it is, and its rows, from a local folder, the hub, files of clients, or a function.

A dataset is decoded once per machine into plain arrays under ``cache-dir`` and memory-mapped from there, so that worker
processes share one copy and start without decoding. Data without a schema are imported: their schema is inferred and
written beside the arrays. ``digits`` ships with scikit-learn and needs neither files nor network.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
from filelock import FileLock

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.files import write_text
from florilegium.common.memo import remembered
from florilegium.common.settings import folder
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.settings import SourceSettings
from florilegium.partitions.sources import folders, hub
from florilegium.partitions.sources.arrays import ArrayFunction, from_function
from florilegium.partitions.sources.decode import decode, digits, read_parquet
from florilegium.partitions.sources.fitting import fitted
from florilegium.partitions.sources.inference import Inference, infer
from florilegium.partitions.sources.schema import FILE, read_schema
from florilegium.partitions.sources.store import (
    PARTS,
    check_splits,
    has_splits,
    map_splits,
    notes_of,
    write_dataset,
    write_splits,
)
from florilegium.partitions.sources.words import Vocabulary, vocabulary
from florilegium.partitions.spec import Dataset, DatasetSpec, Split
from florilegium.tasks.task import Task

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset

DATA_VARIABLE = "FLORILEGIUM_DATA"
"""Environment variable: the folder that holds ``<dataset>/train.parquet`` and ``test.parquet``."""

_FORMAT = 4
"""Version of the format of decoded datasets in the cache; increase it so that old caches are not used."""
_IMPORT_FORMAT = 3
"""Version of inference; increase it so that schemas are inferred anew."""
_NO_KEYS = Inference()

Stamps = list[tuple[str, int, int]]
Tables = tuple[dict[str, pyarrow.Table], list[str]]


def dataset_of(settings: SourceSettings) -> DatasetSpec:
    """Return the description of the dataset of ``settings``; data without a schema are imported for it.

    Raises:
        ConfigurationError: if there is no such dataset, or keys contradict it.
        DataError: if its data are needed to describe it, and cannot be used.
    """
    spec = _spec(settings.dataset, settings.data_dir, settings.cache_dir, _inference(settings))
    return replace(spec, task=settings.task) if settings.task else spec


def task_of(settings: SourceSettings) -> Task:
    """Return what is learned from the dataset of ``settings``; raises as :func:`dataset_of`."""
    return dataset_of(settings).learned


def load_dataset(settings: SourceSettings, embeddings: str = "") -> Dataset:
    """Load the dataset of ``settings``; see :func:`load`."""
    keys = _inference(settings)
    return load(settings.dataset, settings.data_dir, settings.cache_dir, embeddings, keys, settings.task)


def _inference(settings: SourceSettings) -> Inference:
    return Inference(settings.input_column, settings.label_column, settings.text_length, settings.image_size)


def decisions(spec: DatasetSpec, cache_dir: str) -> list[str]:
    """Return how the schema of an imported dataset was inferred, a line for each decision; [] for other datasets."""
    path = Path(spec.folder)
    imported = spec.folder and path.parent == folder(cache_dir).absolute() / "imported"
    return notes_of(path) if imported else []


def _spec(name: str, data_dir: str, cache_dir: str, keys: Inference) -> DatasetSpec:
    """Return the description of dataset ``name``; see :func:`dataset_of`."""
    if name in DATASETS.own or (not name.startswith(hub.PREFIX) and "/" not in name):
        entry = DATASETS[name]
        _refuse(keys, name)
        return _made_by(entry, cache_dir) if isinstance(entry, ArrayFunction) else entry
    where = folder(name)
    if not name.startswith(hub.PREFIX) and (where / FILE).is_file():
        _refuse(keys, name)
        spec = read_schema(where)
        of_clients = not has_splits(where) and not (where / "train.parquet").is_file() and folders.has_clients(where)
        columns = (*([folders.CLIENT] if of_clients else []), *spec.client_columns)
        return replace(spec, client_columns=tuple(dict.fromkeys(columns)))
    return _imported(name, data_dir, cache_dir, keys, os.environ.get(DATA_VARIABLE, ""))


def _refuse(keys: Inference, name: str) -> None:
    if given := keys.given():
        raise ConfigurationError(
            f"{given[0]}: the columns of '{name}' are described already; the key is for data without a schema. Leave "
            "it out"
        )


@remembered(16)
def _made_by(function: ArrayFunction, cache_dir: str) -> DatasetSpec:
    """Call a function for its arrays, once per process, and return the description of the dataset."""
    return read_schema(from_function(function, cache_dir))


@remembered(16)
def _imported(name: str, data_dir: str, cache_dir: str, keys: Inference, variable: str) -> DatasetSpec:
    """Return the description of data without a schema, which are imported unless they have been.

    Args:
        name: a reference ``hub:…``, or the path of a folder.
        data_dir, cache_dir, keys: the configuration.
        variable: value of the environment variable ``FLORILEGIUM_DATA``; a local copy may be there.
    """
    read: Callable[[], Tables]
    if name.startswith(hub.PREFIX):
        identity, config = hub.parse_reference(name)
        local = _local_copy(f"{identity}/{config}" if config else identity, data_dir)
        files = [] if local is None else hub.local_files(local)
        short, source = identity.rpartition("/")[2], name
        read = partial(hub.read_hub, identity, config) if local is None else partial(hub.read_local, local, name)
    else:
        local = folder(name)
        if not local.is_absolute():
            raise ConfigurationError(f"dataset: '{name}' is a relative path; give an absolute one")
        files, short, source = folders.files_of(local), _safe(local.name), str(local)
        read = partial(folders.read_folder, local)
    facts = [_IMPORT_FORMAT, name, vars(keys), _stamps(files)]
    path = folder(cache_dir).absolute() / "imported"
    path /= f"{short}-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]}"
    if not has_splits(path):
        _make(path.parent)
        with FileLock(path.with_suffix(".lock")):
            if not has_splits(path):
                tables, notes = read()
                found = infer(short, source, tables, keys)
                write_dataset(path, found.schema, found.splits, (*notes, *found.notes))
    return read_schema(path)


def _safe(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name).strip("-_") or "own"


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cache-dir: {path} cannot be made ({error.strerror}); name another folder") from error


def _local_folder(spec: DatasetSpec, data_dir: str) -> Path | None:
    """Return the folder of local parquet files, or None if neither ``data-dir`` nor the environment variable has one.

    Raises:
        DataError: if ``data-dir`` is set but does not contain the dataset. For the environment variable's folder this
            is no error.
    """
    return Path(spec.folder) if spec.folder else _local_copy(spec.source or spec.name, data_dir)


def check_local(spec: DatasetSpec, data_dir: str) -> None:
    """Raise :class:`DataError` if a dataset is to be read from ``data-dir``, and is not there."""
    if spec.name != "digits" and not spec.made and not spec.derived:
        _local_folder(spec, data_dir)


def _local_copy(name: str, data_dir: str) -> Path | None:
    if data_dir:
        path = folder(data_dir) / name
        if not (path / "train.parquet").is_file():
            raise DataError(
                f"data-dir: there is no {path / 'train.parquet'}. Expected {folder(data_dir)}/<dataset>/train.parquet "
                "and test.parquet in the hub's own schema; leave data-dir empty to load from the hub."
            )
        return path
    if DATA_VARIABLE in os.environ:
        path = folder(os.environ[DATA_VARIABLE]) / name
        if not path.is_absolute():
            raise DataError(f"{DATA_VARIABLE}: '{os.environ[DATA_VARIABLE]}' is a relative path; give an absolute one")
        return path if (path / "train.parquet").is_file() else None
    return None


def _stamps(files: Sequence[Path]) -> Stamps:
    """Return name, size and modification time of each file, which change with the data."""
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def _fingerprint(spec: DatasetSpec, files: Sequence[Path], words: Vocabulary | None) -> str:
    """Return a hash that changes with the source files (name, size and modification time of each)."""
    vocabularies = [words.name] if words else []
    described = [repr(spec), *spec.further] if DATASETS.own.get(spec.name) is not spec else []
    facts = [_FORMAT, spec.name, spec.hub, _stamps(files), *vocabularies, *described]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@remembered(4)
def load(
    name: str, data_dir: str, cache_dir: str, embeddings: str = "", keys: Inference = _NO_KEYS, task: str = ""
) -> Dataset:
    """Load dataset ``name``: from ``data_dir``, else from ``$FLORILEGIUM_DATA``, else from the hub.

    The first call on a machine decodes it into ``cache_dir`` under a file lock; later calls, in any process, memory-map
    the arrays from there. Datasets of words need a file of ``embeddings``
    (:mod:`florilegium.partitions.sources.words`). ``keys`` help to infer a schema. ``task`` is
    what is learned, if it is not the dataset's own task.

    Raises:
        ConfigurationError: if there is no dataset of this name, or the task cannot be learned from it.
        DataError: if its files are missing or do not fit its schema.
    """
    spec = _spec(name, data_dir, cache_dir, keys)
    if spec.folder and has_splits(Path(spec.folder)):
        return _ready(spec).read_by(task)
    path = None if name == "digits" else _local_folder(spec, data_dir)
    words = vocabulary(embeddings, cache_dir, spec.shape[1]) if spec.kind == "words" else None
    whole = path is not None and (path / "train.parquet").is_file()
    files = [] if path is None else sorted(path.glob("*.parquet")) if whole else folders.files_of(path)
    fingerprint = _fingerprint(spec, files, words)
    cache = folder(cache_dir) / "datasets" / f"{spec.name}-{fingerprint}"
    if not (cache / "complete").exists():
        _make(cache)
        with FileLock(cache / "lock"):
            if not (cache / "complete").exists():
                splits = _read(spec, path, words)
                if spec.derived:
                    module, _, function = spec.derived.partition(":")
                    splits = getattr(importlib.import_module(module), function)(splits)
                write_splits(cache, splits)
                write_text(cache / "complete", "")
    splits = map_splits(cache)
    return Dataset(spec, splits["train"], splits.get("test"), fingerprint, words).read_by(task)


def _ready(spec: DatasetSpec) -> Dataset:
    """Map a folder of decoded arrays, which a schema describes."""
    path = Path(spec.folder)
    splits = map_splits(path)
    check_splits(path, spec, splits)
    # The folder is named by a hash of its content or of its source.
    stamps = _stamps(sorted(path.glob("*.npy")))
    fingerprint = hashlib.sha256(json.dumps([path.name, repr(spec), *spec.further, stamps]).encode()).hexdigest()[:16]
    return Dataset(spec, splits["train"], splits.get("test"), fingerprint)


def _read(spec: DatasetSpec, path: Path | None, words: Vocabulary | None) -> dict[str, Split]:
    if DATASETS.own["digits"] is spec:  # another dataset may have this name too
        return digits()
    if path is not None and spec.folder and not (path / "train.parquet").is_file():
        tables, _ = folders.read_folder(path)
        return {part: fitted(spec, table, f"{path}, {part}") for part, table in tables.items()}
    if path is not None:
        files = {split: path / f"{split}.parquet" for split in PARTS}
        found = {split: file for split, file in files.items() if file.exists()}
        return {split: decode(spec, read_parquet(file), str(file), words) for split, file in found.items()}
    splits = PARTS if spec.test else ("train",)
    return {split: decode(spec, _from_hub(spec, split), f"{spec.hub} ({split})", words) for split in splits}


def _from_hub(spec: DatasetSpec, split: str) -> HubDataset:
    from flwr_datasets import FederatedDataset

    try:
        federated = FederatedDataset(dataset=spec.hub, subset=spec.subset, partitioners={}, shuffle=False)
        return federated.load_split(split)
    except Exception as error:
        raise DataError(
            f"dataset '{spec.name}' is neither in a local folder (key data-dir, or ${DATA_VARIABLE}) nor could it be "
            f"loaded from the hub as '{spec.hub}': {type(error).__name__}: {error}"
        ) from error
