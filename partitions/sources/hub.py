"""Read any dataset of the Hugging Face hub: from a local folder if it has a copy, else from the hub."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.parquet

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.partitions.sources.source import DATA_VARIABLE, Source, Unread
from florilegium.partitions.sources.table_files import read_parquet
from florilegium.partitions.spec import DatasetSpec

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
    local = source.local_copy(f"{name}/{config}" if config else name)
    short = name.rpartition("/")[2]
    if local is None:
        return Unread(short, source.name, [], partial(read_hub, name, config))
    files = {file.stem: file for file in sorted(local.glob("*.parquet"))}
    return Unread(short, source.name, [*files.values()], lambda: _splits(files, source.name, read_parquet))


def load(spec: DatasetSpec, split: str) -> HubDataset:
    """Load a split of a described dataset from the hub.

    Raises:
        DataError: if it cannot be loaded.
    """
    from flwr_datasets import FederatedDataset

    try:
        federated = FederatedDataset(dataset=spec.hub, subset=spec.subset, partitioners={}, shuffle=False)
        return federated.load_split(split)
    except Exception as error:  # the network, the hub or the dataset may fail in any way
        raise DataError(
            f"dataset '{spec.name}' is neither in a local folder (key data-dir, or ${DATA_VARIABLE}) nor could it be "
            f"loaded from the hub as '{spec.hub}': {type(error).__name__}: {error}"
        ) from error


def read_hub(name: str, config: str | None) -> tuple[dict[str, pa.Table], list[str]]:
    """Load the splits of a dataset of the hub.

    Returns:
        The tables "train" and perhaps "test", and a line of text for each decision.

    Raises:
        DataError: if it cannot be loaded, or has no split "train".
    """
    import datasets

    try:
        loaded = datasets.load_dataset(name, config)
    except Exception as error:  # the network, the hub or the dataset may fail in any way
        raise DataError(
            f"dataset 'hub:{name}' is neither in a local folder (<data-dir>/{name}/train.parquet, or in "
            f"$FLORILEGIUM_DATA) nor could it be loaded from the hub: {type(error).__name__}: {error}"
        ) from error
    return _splits(dict(loaded), name, _with_features)


def _with_features(split: HubDataset) -> pa.Table:
    """Return the rows of a loaded split as in a parquet file: images as bytes, features in the metadata."""
    buffer = io.BytesIO()
    split.to_parquet(buffer)
    buffer.seek(0)
    return pyarrow.parquet.read_table(buffer)


def _splits(found: dict[str, T], name: str, read: Callable[[T], pa.Table]) -> tuple[dict[str, pa.Table], list[str]]:
    if "train" not in found:
        raise DataError(
            f"hub:{name} has no split 'train' (found: {', '.join(found) or 'none'}); used are train and test, or "
            "validation if there is no test"
        )
    test = next((split for split in SPLITS[1:] if split in found), "")
    notes = ["test rows: split 'validation', as there is no split 'test'"] if test == "validation" else []
    if unused := [split for split in found if split not in ("train", test)]:
        notes.append(f"splits not used: {', '.join(unused)}")
    return {part: read(found[split]) for part, split in (("train", "train"), ("test", test)) if split}, notes
