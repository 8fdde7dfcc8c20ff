"""Read any dataset of the Hugging Face hub: from a local folder if it has a copy, else from the hub."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.sources.source import DATA_VARIABLE, Source, Tables, Unread
from florilegium.partitions.sources.table_files import read_parquet
from florilegium.partitions.spec import PARTS, DatasetSpec

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset

T = TypeVar("T")
PREFIX = "hub:"
SPLITS = ("train", "test", "validation")


def found(source: Source) -> Unread:
    """Return the rows of the dataset ``hub:org/name`` or ``hub:org/name/config``, not read yet.

    Raises:
        ConfigurationError: if the reference is written differently.
        DataError: if it is to be in ``data-dir``, and is not.
    """
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)(?:/([\w.-]+))?", source.name)
    if match is None or ".." in source.name:
        raise ConfigurationError(
            f"dataset: '{source.name}' is no dataset of the hub; expected 'hub:org/name' or 'hub:org/name/config'"
        )
    name, config = match[1], match[2]
    short, local = name.rpartition("/")[2], f"{name}/{config}" if config else name
    folder = source.local_copy(local)
    files = [] if folder is None else sorted(folder.glob("*.parquet"))
    return Unread(short, source.name, files, partial(_read, source.name, files, local, name, config))


def _read(title: str, files: Sequence[Path], local: str, hub: str, config: str | None) -> Tables:
    """Read the splits "train" and "test", or "validation", from ``files`` or, without any, from the hub."""
    if files:
        return _splits({file.stem: file for file in files}, title, read_parquet)
    return _splits(_load(local, hub, config), title, _with_features)


def described(spec: DatasetSpec) -> Unread:
    """Return the rows of a described dataset on the hub, not read yet."""
    parts = PARTS if spec.test else PARTS[:1]

    def read() -> Tables:
        loaded = _load(spec.source or spec.name, spec.hub, spec.subset, parts)
        return {part: split.data.table for part, split in loaded.items()}, []

    return Unread(spec.name, spec.hub, [], read, "{0} ({1})")


def _load(local: str, hub: str, config: str | None, splits: Sequence[str] = ()) -> dict[str, HubDataset]:
    """Load the given splits of a dataset of the hub, or all; ``local``: where its local copy would be.

    Raises:
        DataError: if they cannot be loaded.
    """
    import datasets

    try:
        loaded = datasets.load_dataset(hub, config)
        return {split: loaded[split] for split in splits or loaded}
    except Exception as error:  # the network, the hub or the dataset may fail in any way
        raise DataError(
            f"dataset '{local}' is neither in a local folder (<data-dir>/{local}/train.parquet; key data-dir, or "
            f"${DATA_VARIABLE}) nor could it be loaded from the hub as '{hub}': {type(error).__name__}: {error}"
        ) from error


def _with_features(split: HubDataset) -> pa.Table:
    """Return the rows of a loaded split as in a parquet file: images as bytes, features in the metadata."""
    buffer = io.BytesIO()
    split.to_parquet(buffer)
    buffer.seek(0)
    return pyarrow.parquet.read_table(buffer)


def _splits(found: dict[str, T], name: str, read: Callable[[T], pa.Table]) -> Tables:
    if "train" not in found:
        raise DataError(
            f"{name} has no split 'train' (found: {', '.join(found) or 'none'}); used are train and test, or "
            "validation if there is no test"
        )
    test = next((split for split in SPLITS[1:] if split in found), "")
    notes = ["test rows: split 'validation', as there is no split 'test'"] if test == "validation" else []
    if unused := [split for split in found if split not in ("train", test)]:
        notes.append(f"splits not used: {', '.join(unused)}")
    return {part: read(found[split]) for part, split in (("train", "train"), ("test", test)) if split}, notes
