"""Describe a dataset: what its columns are, from the table of datasets, its schema, or the rows themselves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from florilegium.common.files import make_once
from florilegium.common.memo import remembered
from florilegium.common.settings import folder
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.sources import folders, hub
from florilegium.partitions.sources.arrays import from_function
from florilegium.partitions.sources.inference import infer
from florilegium.partitions.sources.schema import FILE, read_schema
from florilegium.partitions.sources.source import Source
from florilegium.partitions.sources.store import has_splits, notes_of, stamps, write_dataset
from florilegium.partitions.spec import DatasetSpec

_FORMAT = 3
"""Version of inference; increase it so that schemas are inferred anew."""


def described(source: Source) -> DatasetSpec:
    """Return the description of the dataset of ``source``; data without a schema are imported for it.

    Raises:
        ConfigurationError: if there is no such dataset, or keys contradict it.
        DataError: if its data are needed to describe it, and cannot be used.
    """
    name = source.name
    if name in DATASETS.own or (not name.startswith(hub.PREFIX) and "/" not in name):
        entry = DATASETS[name]
        source.refuse_keys()
        if isinstance(entry, DatasetSpec):
            return entry
        where = from_function(entry, source.cache)
    elif not name.startswith(hub.PREFIX) and (source.path / FILE).is_file():
        source.refuse_keys()
        where = source.path
    else:
        where = _imported(source)
    spec = read_schema(where)
    if has_splits(where) or (where / "train.parquet").is_file() or not folders.has_clients(where):
        return spec
    return replace(spec, client_columns=tuple(dict.fromkeys((folders.CLIENT, *spec.client_columns))))


@remembered(16)
def _imported(source: Source) -> Path:
    """Return the folder of data without a schema, with their schema and their arrays; made unless it has been."""
    unread = hub.found(source) if source.name.startswith(hub.PREFIX) else folders.found(source.path)
    facts = [_FORMAT, source.name, vars(source.keys), stamps(unread.files)]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    target = source.cache.absolute() / "imported" / f"{unread.name}-{key}"

    def make() -> None:
        tables, notes = unread.read()
        found = infer(unread.name, unread.where, tables, source.keys)
        write_dataset(target, found.schema, found.splits, (*notes, *found.notes))

    make_once(target / "train-x.npy", make, target.with_suffix(".lock"))
    return target


def decisions(spec: DatasetSpec, cache_dir: str) -> list[str]:
    """Return how the schema of an imported dataset was inferred, a line for each decision; [] for other datasets."""
    path = Path(spec.folder)
    return notes_of(path) if spec.folder and path.parent == folder(cache_dir).absolute() / "imported" else []
