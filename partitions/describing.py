"""Describe a dataset: what its columns are, from the table of datasets, its schema, or the rows themselves."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from florilegium.common.errors import ConfigurationError
from florilegium.common.files import make_once
from florilegium.common.memo import remembered
from florilegium.common.model_folders import find_folder, tokenizer_hash
from florilegium.common.settings import folder
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.sources import folders, hub
from florilegium.partitions.sources.arrays import from_function
from florilegium.partitions.sources.inference import infer
from florilegium.partitions.sources.schema import FILE, read_schema
from florilegium.partitions.sources.source import CLIENT, Source
from florilegium.partitions.sources.store import Imported, notes_of, write_dataset
from florilegium.partitions.spec import DatasetSpec

_FORMAT = 4
"""Version of inference; increase it so that schemas are inferred anew."""


def described(source: Source) -> DatasetSpec:
    """Return the description of the dataset of ``source``; data without a schema are imported for it.

    Raises:
        ConfigurationError: if there is no such dataset, or keys contradict it.
        DataError: if its data are needed to describe it, and cannot be used.
    """
    name = source.name
    if name.startswith(hub.PREFIX) or ("/" in name and not (source.path / FILE).is_file()):
        where = _imported(source)
    else:
        entry = source.path if "/" in name else DATASETS[name]
        source.refuse_keys()
        if isinstance(entry, DatasetSpec):
            return _as_asked(entry, source)
        where = (
            entry
            if isinstance(entry, Path)
            else from_function(entry, source.cache, source.keys.tokenizer, source.keys.text_length)
        )
    spec = read_schema(where)
    if not (spec.arrays or folders.plain_parquet(where)) and folders.has_clients(where):
        spec = replace(spec, client_columns=tuple(dict.fromkeys((CLIENT, *spec.client_columns))))
    return _as_asked(spec, source)


def _as_asked(spec: DatasetSpec, source: Source) -> DatasetSpec:
    """Return the description with the scales and the weights that keys ask for.

    Raises:
        ConfigurationError: if the dataset has no numbers to standardise, or no such column of weights.
    """
    if (weight := source.keys.weight_column) and weight != spec.weight:
        if spec.arrays or spec.made:
            raise ConfigurationError(f"weight-column: '{spec.name}' holds arrays, without a column '{weight}'")
        spec = replace(spec, weight=weight)
    # Inferred schemas have them already, and their rows are encoded so.
    fitted = "" if spec.arrays and spec.table is not None else source.keys.fitted_scales
    return spec.scaled_by(source.keys.standardise, fitted).read_by(source.keys.tokenizer, source.keys.text_length)


@remembered(16)
def _imported(source: Source) -> Path:
    """Return the folder of data without a schema, with their schema and their arrays; made unless it has been."""
    unread = hub.found(source) if source.name.startswith(hub.PREFIX) else folders.found(source.path)
    facts = [_FORMAT, source.name, source.keys.facts, unread.identity(source.cache)]
    if source.keys.tokenizer:
        facts.append(tokenizer_hash(find_folder(source.keys.tokenizer, "tokenizer")))
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def make() -> Imported:
        tables, notes = unread.whole(source.cache)
        found = infer(unread.name, unread.where, tables, source.keys)
        return replace(found, notes=(*notes, *found.notes))

    return make_once(source.cache.absolute() / "imported" / f"{unread.name}-{key}", make, write_dataset)


def decisions(spec: DatasetSpec, cache_dir: str) -> list[str]:
    """Return how the schema of an imported dataset was inferred, a line for each decision; [] for other datasets."""
    path = Path(spec.folder)
    return notes_of(path) if spec.folder and path.parent == folder(cache_dir).absolute() / "imported" else []
