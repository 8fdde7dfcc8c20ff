"""Read any dataset of the Hugging Face hub: from a local folder if it has a copy, else from the hub."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.sources.parts import chosen, contents, splits_of
from florilegium.partitions.sources.places import LEFT_OUT
from florilegium.partitions.sources.source import DATA_VARIABLE, MAIN, Source, Tables, Unread
from florilegium.partitions.sources.table_files import read_shards
from florilegium.partitions.spec import PARTS, DatasetSpec

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset

log = logging.getLogger("flwr")

PREFIX = "hub:"
_COMMIT = re.compile(r"[0-9a-f]{40}")


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
    if folder is not None:
        return Unread(short, source.name, sorted(folder.glob("*.parquet")), partial(_read_copy, folder))
    revision = source.revision or MAIN
    return Unread(short, source.name, [], partial(_read, source.name, local, name, config, revision), revision=revision)


def _read_copy(folder: Path) -> Tables:
    """Read the splits "train" and "test", or "validation", from a folder."""
    found = contents(folder, [".parquet"])
    paths, notes = chosen(found.parts)
    return {part: read_shards(own) for part, own in paths.items()}, [*notes, *found.notes(whole=True)]


def _read(title: str, local: str, hub: str, config: str | None, revision: str) -> Tables:
    """Read the splits "train" and "test", or "validation", from the hub."""
    loaded = _load(local, hub, config, revision)
    known, unused = splits_of(loaded)
    if "train" not in known:
        raise DataError(
            f"{title} has no split 'train' (found: {', '.join(loaded) or 'none'}); used are train and test, or "
            "validation if there is no test"
        )
    splits, notes = chosen(known)
    notes += [f"{LEFT_OUT}{len(unused)} splits: {', '.join(unused)}"] if unused else []
    return {part: _with_features(loaded[split]) for part, split in splits.items()}, notes


def described(spec: DatasetSpec, source: Source) -> Unread:
    """Return the rows of a described dataset on the hub, not read yet."""
    parts = PARTS if spec.test else PARTS[:1]
    revision = source.revision or spec.revision or MAIN

    def read() -> Tables:
        loaded = _load(spec.source or spec.name, spec.hub, spec.subset, revision, parts)
        return {part: split.data.table for part, split in loaded.items()}, []

    return Unread(spec.name, spec.hub, [], read, "{0} ({1})", revision=revision)


def _load(local: str, hub: str, config: str | None, revision: str, splits: Sequence[str] = ()) -> dict[str, HubDataset]:
    """Load the given splits of a dataset of the hub, or all, and warn if its revision may move.

    Args:
        local: where its local copy would be.
        hub, config, revision: its repository, the configuration in it, and the commit, tag or branch.
        splits: the splits; without any, all.

    Raises:
        DataError: if they cannot be loaded.
    """
    import datasets

    try:
        loaded = datasets.load_dataset(hub, config, revision=revision)
        found = {split: loaded[split] for split in splits or loaded}
    except Exception as error:  # the network, the hub or the dataset may fail in any way
        raise DataError(
            f"dataset '{local}' is neither in a local folder (<data-dir>/{local}/train.parquet; key data-dir, or "
            f"${DATA_VARIABLE}) nor could it be loaded from the hub as '{hub}' at revision '{revision}' (key "
            f"dataset-revision): {type(error).__name__}: {error}"
        ) from error
    if not _COMMIT.fullmatch(revision):
        at = _commit_of(found)
        log.warning(
            "dataset '%s' of the hub: its revision '%s' may move%s; fix it with key dataset-revision",
            hub, revision, f", and is commit {at} now" if at else "",
        )  # fmt: skip
    return found


def _commit_of(splits: dict[str, HubDataset]) -> str:
    """Return the commit of the hub that loaded splits are of, from the addresses of their files; "" if unknown."""
    addresses = (address for split in splits.values() for address in split.info.download_checksums or {})
    return next((match[1] for a in addresses if (match := re.search(rf"@({_COMMIT.pattern})/", a))), "")


def _with_features(split: HubDataset) -> pa.Table:
    """Return the rows of a loaded split as in a parquet file: images as bytes, features in the metadata."""
    buffer = io.BytesIO()
    split.to_parquet(buffer)
    buffer.seek(0)
    return pyarrow.parquet.read_table(buffer)
