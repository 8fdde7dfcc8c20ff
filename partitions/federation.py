"""Build a federation: which rows of a dataset each client holds. A pure function of its settings, cached on disk."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.common.files import make_once
from florilegium.common.memo import remembered
from florilegium.common.seeds import numpy_generator
from florilegium.common.settings import folder
from florilegium.common.text import listed
from florilegium.partitions import duplicates
from florilegium.partitions.asking import split_of
from florilegium.partitions.canaries import plant
from florilegium.partitions.dealing import divided, validation_of
from florilegium.partitions.loading import load_dataset
from florilegium.partitions.pooled import pooled
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Federation
from florilegium.partitions.sources.tables import DROP
from florilegium.partitions.spec import Dataset
from florilegium.partitions.split_table import SplitTable, fixed
from florilegium.tasks.choices import Choices

_FORMAT = 8
"""Version of the format of cached index tables; increase it so that old ones are not used."""

_ELSEWHERE = {"data_dir", "cache_dir", "dataset_revision", "embeddings", "duplicates", "fitted_scales"}
_NOT_ROWS = _ELSEWHERE | {one.name for one in fields(Choices)} - {"positive"}
"""Fields of the settings that do not change who holds which rows."""


def federate(settings: FederationSettings) -> tuple[Federation, Dataset]:
    """Return the federation of ``settings`` and its dataset, from the cache if it was built before.

    Raises:
        ConfigurationError: for an unknown dataset or partitioner, or keys that contradict each other.
        DataError: if the data are missing or not enough.
    """
    # Drop the fields of subclasses: the caches must depend on the federation's own keys alone.
    own = FederationSettings.model_construct(
        **{name: getattr(settings, name) for name in FederationSettings.model_fields}
    )
    return _federate(own, contents(own))


def contents(settings: FederationSettings) -> str:
    """Return a hash of what the partitioner depends on besides the keys: files that keys name, code of other packages.

    Raises:
        ConfigurationError: if there is no such partitioner, or a file cannot be read.
    """
    name = settings.partitioner
    partitioning, digest = PARTITIONERS[name], hashlib.sha256()
    for field in partitioning.files:
        path = getattr(settings.own_keys(partitioning.section()), field)
        if path:
            try:
                digest.update(folder(path).read_bytes())
            except OSError as error:
                raise ConfigurationError(f"{name}.{field}: {path} cannot be read ({error.strerror})") from error
    if reference := PARTITIONERS.reference(name):
        file = Path(str(getattr(sys.modules.get(reference.partition(":")[0]), "__file__", "")))
        digest.update(PARTITIONERS.origin(name).encode() + (file.read_bytes() if file.is_file() else b""))
    if settings.mdm_params:
        # This imports scipy, which takes half a second and is rarely needed.
        from florilegium.partitions.mdm_params import fingerprint

        digest.update(fingerprint(settings.mdm_params).encode())
    return digest.hexdigest()


@remembered(4)
def _federate(settings: FederationSettings, contents: str) -> tuple[Federation, Dataset]:
    whole = load_dataset(settings)
    table = split_of(settings)
    if table is not None and whole.spec.table is not None and whole.spec.table.missing == DROP:
        raise ConfigurationError(
            f"missing: 'drop' leaves rows out, and the split of partitioner '{settings.partitioner}' counts all of "
            "them; use 'median' or 'indicator'"
        )
    if settings.duplicates == duplicates.DROP:
        if table is not None:
            raise ConfigurationError(
                f"duplicates: 'drop' leaves rows out, and the split of partitioner '{settings.partitioner}' counts all "
                "of them; use 'warn' or 'refuse'"
            )
        whole = duplicates.distinct(settings, whole)
    dataset = pooled(settings, whole, table)

    def make() -> Federation:
        return _build(settings, whole, dataset, table)

    if PARTITIONERS.reference(settings.partitioner).startswith("__main__:"):
        return make(), dataset  # another notebook may have another partitioner of the same name
    key = settings.model_dump_json(exclude=_NOT_ROWS)
    key += contents + whole.fingerprint + str(_FORMAT)
    name = f"{whole.spec.name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
    path = make_once(settings.cache / "federations" / name, make, Federation.save)
    return Federation.load(path), dataset


def _named_unseen(settings: FederationSettings, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which clients the key ``unseen-clients`` names, (n,).

    Raises:
        ConfigurationError: if one is no client, or a share of unseen clients is to be drawn, too.
    """
    chosen = listed(settings.unseen_clients)
    if chosen and settings.unseen_fraction:
        raise ConfigurationError("unseen-clients: unseen-fraction draws unseen clients; give one of the two")
    known = {str(i): i for i in range(len(names))} | {name: client for client, name in enumerate(names) if name}
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigurationError(
            f"unseen-clients: there is no client '{unknown[0]}'{nearest(unknown[0], known)} Clients: "
            f"{', '.join([*filter(None, names)][:10]) or f'0 to {len(names) - 1}'}"
        )
    return np.isin(np.arange(len(names)), [known[name] for name in chosen])


def build(settings: FederationSettings, dataset: Dataset) -> Federation:
    """Build the federation of ``settings`` from scratch, without the cache.

    A client's test examples have the class proportions of its training examples: it gets t·c test rows of a class of
    which it has c training examples. t ≤ 1 is the same for all clients and classes (of a domain, if there are domains):
    the largest value for which no test row is used twice. For a class that is rare in training, or has too few test
    rows, a client gets its share of the rows there are. Natural clients keep the test rows that carry their name. A
    partitioner with ``held_out`` divides training and test rows together and holds out a share of each client's rows. A
    split that is fixed as a whole decides itself.

    Raises:
        ConfigurationError: if keys contradict each other or the data.
        DataError: if there are not enough rows.
    """
    table = split_of(settings)
    return _build(settings, dataset, pooled(settings, dataset, table), table)


def _build(settings: FederationSettings, whole: Dataset, dataset: Dataset, table: SplitTable | None) -> Federation:
    """Build the federation of ``whole``, whose rows are counted as in ``dataset``; ``table`` is its split, if fixed."""
    rng = numpy_generator(settings.seed, "federation", "rows")
    dealt = divided(settings, dataset, rng) if table is None else fixed(settings, table, whole, rng)
    empty = np.flatnonzero(dealt.train.sizes == 0)
    if len(empty):
        raise DataError(f"num-clients: client {empty[0]} would have no training example; use fewer clients")
    count, partitioning = len(dealt.train), PARTITIONERS[settings.partitioner]
    if partitioning.views and dataset.spec.kind != "image":
        raise ConfigurationError(
            f"partitioner: '{settings.partitioner}' changes images, but '{dataset.spec.name}' has none"
        )
    unseen = np.zeros(count, dtype=bool)
    unseen[rng.permutation(count)[: round(settings.unseen_fraction * count)]] = True
    unseen |= _named_unseen(settings, dealt.names)
    seen = np.flatnonzero(~unseen)
    if len(seen) == 0:
        key = "unseen-clients" if settings.unseen_clients else "unseen-fraction"
        raise ConfigurationError(f"{key}: no client is left to train on; lower it or use more clients")
    labeled = np.ones(count, dtype=bool)
    labeled[rng.permutation(seen)[max(1, round(settings.labeled_fraction * len(seen))) :]] = False
    federation = Federation(
        dealt.train, dealt.test, dealt.test_from_train, unseen, labeled,
        np.zeros(count, np.float32), np.array(dealt.names), dealt.server, notes=dealt.notes,
        validation=validation_of(settings, dataset, dealt),
    )  # fmt: skip
    federation = replace(federation, **partitioning.seen(settings))
    return plant(federation, dataset, settings) if settings.canaries else federation
