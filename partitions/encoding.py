"""Encode the rows of a described dataset: decoded once a machine to arrays on disk, memory-mapped by every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from florilegium.common.files import make_once
from florilegium.common.references import resolve
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.sources import folders, hub
from florilegium.partitions.sources.decode import decode
from florilegium.partitions.sources.parts import VALIDATION, chosen, contents
from florilegium.partitions.sources.places import in_file
from florilegium.partitions.sources.source import Source, Tables, Unread
from florilegium.partitions.sources.store import map_splits, notes_beside, write_read
from florilegium.partitions.sources.table_files import read_shards
from florilegium.partitions.sources.words import vocabulary
from florilegium.partitions.spec import Dataset, DatasetSpec, Split

_FORMAT = 5
"""Version of the format of decoded datasets in the cache; increase it so that old caches are not used."""


def rows_of(spec: DatasetSpec, source: Source) -> Unread:
    """Return the rows of a described dataset, not read yet: in its folder, in a local copy, or on the hub.

    Raises:
        DataError: if the dataset is to be read from ``data-dir``, and is not there, or its raw files are missing.
    """
    if spec.arrays:
        revision = hub.found(source).revision if source.name.startswith(hub.PREFIX) else ""
        arrays = sorted(spec.arrays.glob("*.npy"))
        return Unread(spec.name, spec.folder, arrays, lambda: ({}, []), revision=revision)
    if spec.raw:
        unread: Unread = resolve(spec.raw)(spec, source)
        return unread
    path = Path(spec.folder) if spec.folder else source.local_copy(spec.source or spec.name)
    if path is None:
        return hub.described(spec, source)
    if not folders.plain_parquet(path):
        return replace(folders.found(path), foreign=True)
    found = contents(path)

    def read() -> Tables:
        paths, notes = chosen(found.parts)
        return {part: read_shards(own) for part, own in paths.items()}, [*notes, *found.notes(whole=True)]

    return Unread(spec.name, str(path), sorted(path.glob("*.parquet")), read, "{0}/{1}.parquet")


def encoded(spec: DatasetSpec, source: Source) -> Dataset:
    """Return the dataset that ``spec`` describes: from a local folder, else from the hub.

    The first call on a machine decodes it into the cache; later calls, in any process, memory-map the arrays from
    there. Datasets of words need a file of embeddings (:mod:`florilegium.partitions.sources.words`).

    Raises:
        ConfigurationError: if it needs embeddings, and none are named.
        DataError: if its files are missing or do not fit its schema.
    """
    unread = rows_of(spec, source)
    words = vocabulary(source.embeddings, str(source.cache), spec.shape[1]) if spec.kind == "words" else None
    described = [repr(spec), *spec.hidden] if DATASETS.own.get(spec.name) is not spec else []
    facts = [_FORMAT, spec.name, spec.hub, unread.identity(source.cache), *([words.name] if words else []), *described]
    fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def make() -> tuple[Mapping[str, Split], list[str]]:
        tables, notes = unread.whole(source.cache)
        splits = {}
        for part, table in tables.items():
            where = unread.form.format(unread.where, part)
            with in_file(table):
                splits[part] = decode(spec, table, where, words, part, foreign=unread.foreign, notes=notes)
        return resolve(spec.derived)(splits) if spec.derived else splits, notes

    cache = source.cache / "datasets" / f"{spec.name}-{fingerprint}"
    where = spec.arrays or make_once(cache, make, write_read)
    splits = map_splits(where, spec)
    return Dataset(
        spec,
        splits["train"],
        splits.get("test"),
        fingerprint,
        words,
        notes=notes_beside(where),
        validation=splits.get(VALIDATION),
    )
