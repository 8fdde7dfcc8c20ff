"""Registry of datasets, and loading one: from a local folder if there is one, else from the hub with flwr-datasets.

A dataset is decoded once per machine into plain arrays under ``cache-dir`` and memory-mapped from there, so that worker
processes share one copy and start without decoding. ``digits`` ships with scikit-learn and needs neither files nor
network.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.files import write_array, write_atomically
from florilegium.common.settings import folder
from florilegium.partitions.sources.decode import decode, digits, read_parquet
from florilegium.partitions.sources.schema import read_schema
from florilegium.partitions.sources.tables import ADULT
from florilegium.partitions.sources.words import Vocabulary, vocabulary
from florilegium.partitions.spec import Dataset, DatasetSpec, Split

if TYPE_CHECKING:
    from datasets import Dataset as HubDataset

DATA_VARIABLE = "FLORILEGIUM_DATA"
"""Environment variable: the folder that holds ``<dataset>/train.parquet`` and ``test.parquet``."""

_FORMAT = 3
"""Version of the format of decoded datasets in the cache; increase it so that old caches are not used."""


def _grey(
    name: str, hub: str, y: str, classes: int, mean: float, std: float, side: int = 28, clients: tuple[str, ...] = (),
    test: bool = True,
) -> DatasetSpec:  # fmt: skip
    return DatasetSpec(name, hub, "image", "image", y, classes, (1, side, side), (mean,), (std,), clients, test)


_Triple = tuple[float, float, float]


def _colour(
    name: str,
    hub: str,
    x: str,
    y: str,
    classes: int,
    mean: _Triple,
    std: _Triple,
    side: int = 32,
    subset: str | None = None,
    source: str = "",
) -> DatasetSpec:
    shape = (3, side, side)
    return DatasetSpec(name, hub, "image", x, y, classes, shape, mean, std, subset=subset, source=source)


DATASETS: Mapping[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        # Pixel values are 0..16 instead of 0..255, so mean and deviation are small.
        _grey("digits", "", "label", 10, 0.01915, 0.02359, side=8),
        _colour(
            "cifar10", "uoft-cs/cifar10", "img", "label", 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
        ),
        # Ten corruptions of CIFAR-10's test images, computed when the dataset is loaded.
        DatasetSpec(
            "cifar10_c", "uoft-cs/cifar10", "image", "img", "label", 10, (3, 32, 32), (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616), client_columns=("corruption",), source="cifar10",
            derived="florilegium.partitions.sources.corruptions:corrupted",
        ),
        _colour(
            "cifar100", "uoft-cs/cifar100", "img", "fine_label", 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
        ),
        _grey("mnist", "ylecun/mnist", "label", 10, 0.1307, 0.3081),
        # MNIST with three equal channels, for networks that are later trained on colour images.
        _colour(
            "mnist_rgb", "ylecun/mnist", "image", "label", 10, (0.1307,) * 3, (0.3081,) * 3, 28, source="mnist"
        ),
        _grey("fashion_mnist", "zalando-datasets/fashion_mnist", "label", 10, 0.2860, 0.3530),
        _colour(
            "mnist_m", "Mike0307/MNIST-M", "image", "label", 10, (0.4342, 0.4378, 0.3853), (0.2515, 0.2380, 0.2490), 28
        ),
        _grey(
            "femnist", "flwrlabs/femnist", "character", 62, 0.9637, 0.1592, clients=("writer_id",), test=False
        ),
        _grey("emnist_letters", "tanganke/emnist_letters", "label", 26, 0.1722, 0.3309),
        _colour(
            "svhn", "ufldl-stanford/svhn", "image", "label", 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970),
            subset="cropped_digits",
        ),
        DatasetSpec(
            "shakespeare", "flwrlabs/shakespeare", "characters", "x", "y", 80, (80,),
            client_columns=("client_id", "character_id"), test=False,
        ),
        DatasetSpec(
            "sent140", "stanfordnlp/sentiment140", "characters", "text", "sentiment", 2, (140,),
            client_columns=("user",), test=False, labels=(0, 4),
        ),
        DatasetSpec(
            "sent140_words", "stanfordnlp/sentiment140", "words", "text", "sentiment", 2, (25, 300),
            client_columns=("user",), test=False, labels=(0, 4), source="sent140",
        ),
        DatasetSpec(
            "adult", "scikit-learn/adult-census-income", "table", "", "income", 2, (108,),
            client_columns=("occupation", "workclass", "native.country", "education"), test=False,
            labels=("<=50K", ">50K"), table=ADULT,
        ),
        DatasetSpec(
            "synthetic-linear", "", "regression", "x", "y", 1, (100,), client_columns=("client",),
            made="florilegium.partitions.sources.synthetic:linear",
        ),
        *(
            DatasetSpec(
                name, "", "table", "", "", classes, (1,), client_columns=("client",), 
                made="florilegium.partitions.sources.histograms:histograms",
            )
            for name, classes in (("histograms", 10), ("histograms-5", 5))
        ),
        DatasetSpec(
            "gaussian-mixture", "", "table", "", "", 10, (100,), made="florilegium.partitions.sources.mixture:mixture",
        ),
    )
}  # fmt: skip


def find_spec(name: str) -> DatasetSpec:
    """Return the description of dataset ``name``.

    A path names a custom dataset: a folder with ``schema.toml`` and ``train.parquet``.

    Raises:
        ConfigurationError: if there is no such dataset; the message suggests the closest name.
    """
    if "/" in name:
        return read_schema(folder(name))
    if name not in DATASETS:
        raise ConfigurationError(
            f"dataset: '{name}' is not a dataset{nearest(name, DATASETS)} Known: {', '.join(DATASETS)}."
        )
    return DATASETS[name]


def _local_folder(spec: DatasetSpec, data_dir: str) -> Path | None:
    """Return the folder of local parquet files, or None if neither ``data-dir`` nor the environment variable has one.

    Raises:
        DataError: if ``data-dir`` is set but does not contain the dataset. For the environment variable's folder this
            is no error.
    """
    if spec.folder:
        return Path(spec.folder)
    if data_dir:
        path = folder(data_dir) / (spec.source or spec.name)
        if not (path / "train.parquet").is_file():
            raise DataError(
                f"data-dir: there is no {path / 'train.parquet'}. Expected {folder(data_dir)}/<dataset>/train.parquet "
                "and test.parquet in the hub's own schema; leave data-dir empty to load from the hub."
            )
        return path
    if DATA_VARIABLE in os.environ:
        path = folder(os.environ[DATA_VARIABLE]) / (spec.source or spec.name)
        if not path.is_absolute():
            raise DataError(f"{DATA_VARIABLE}: '{os.environ[DATA_VARIABLE]}' is a relative path; give an absolute one")
        return path if (path / "train.parquet").is_file() else None
    return None


def _fingerprint(spec: DatasetSpec, path: Path | None, words: Vocabulary | None) -> str:
    """Return a hash that changes with the source files (name, size and modification time of each)."""
    files = [] if path is None else sorted(path.glob("*.parquet"))
    stamps = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    vocabularies = [words.name] if words else []
    facts = [_FORMAT, spec.name, spec.hub, stamps, *vocabularies, *([repr(spec)] if spec.folder else [])]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@lru_cache(maxsize=4)
def load(name: str, data_dir: str, cache_dir: str, embeddings: str = "") -> Dataset:
    """Load dataset ``name``: from ``data_dir``, else from ``$FLORILEGIUM_DATA``, else from the hub.

    The first call on a machine decodes it into ``cache_dir`` under a file lock; later calls, in any process, memory-map
    the arrays from there. Datasets of words need a file of ``embeddings``
    (:mod:`florilegium.partitions.sources.words`).

    Raises:
        ConfigurationError: if there is no dataset of this name.
        DataError: if its files are missing or do not fit its schema.
    """
    spec = find_spec(name)
    path = None if name == "digits" else _local_folder(spec, data_dir)
    words = vocabulary(embeddings, cache_dir, spec.shape[1]) if spec.kind == "words" else None
    fingerprint = _fingerprint(spec, path, words)
    cache = folder(cache_dir) / "datasets" / f"{spec.name}-{fingerprint}"
    if not (cache / "complete").exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cache-dir: {cache} cannot be made ({error.strerror}); name another folder") from error
        with FileLock(cache / "lock"):
            if not (cache / "complete").exists():
                splits = _read(spec, path, words)
                if spec.derived:
                    module, _, function = spec.derived.partition(":")
                    splits = getattr(importlib.import_module(module), function)(splits)
                for split, decoded in splits.items():
                    _store(cache, split, decoded)
                write_atomically(cache / "complete", lambda temporary: None)
    test = _map(cache, "test") if (cache / "test-y.npy").exists() else None
    return Dataset(spec, _map(cache, "train"), test, fingerprint, words)


def _store(cache: Path, name: str, split: Split) -> None:
    arrays = {"x": split.x, "y": split.y} | {f"client-{column}": values for column, values in split.clients.items()}
    for key, array in arrays.items():
        write_array(cache / f"{name}-{key}.npy", array)


def _map(cache: Path, name: str) -> Split:
    clients = {
        path.stem.removeprefix(f"{name}-client-"): np.load(path, mmap_mode="r")
        for path in sorted(cache.glob(f"{name}-client-*.npy"))
    }
    return Split(np.load(cache / f"{name}-x.npy", mmap_mode="r"), np.load(cache / f"{name}-y.npy"), clients)


def _read(spec: DatasetSpec, path: Path | None, words: Vocabulary | None) -> dict[str, Split]:
    if spec.name == "digits":
        return digits()
    if path is not None:
        files = {split: path / f"{split}.parquet" for split in ("train", "test")}
        found = {split: file for split, file in files.items() if file.exists()}
        return {split: decode(spec, read_parquet(file), str(file), words) for split, file in found.items()}
    splits = ("train", "test") if spec.test else ("train",)
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
