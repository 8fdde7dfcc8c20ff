"""Load a dataset: what it is, and its rows, in one direction.

A row's way is: where it is (:mod:`florilegium.partitions.sources.source`), what it is
(:mod:`florilegium.partitions.describing`), its arrays on disk (:mod:`florilegium.partitions.encoding`), who holds it
(:mod:`florilegium.partitions.federation`), and a client's tensors (:mod:`florilegium.partitions.clientdata`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.memo import remembered
from florilegium.common.references import resolve
from florilegium.partitions.describing import described
from florilegium.partitions.encoding import encoded, rows_of
from florilegium.partitions.settings import FederationSettings, SourceSettings
from florilegium.partitions.sources.source import Source
from florilegium.partitions.spec import Dataset, DatasetSpec
from florilegium.tasks.choices import Choices
from florilegium.tasks.task import Task


@remembered(1)
def _told() -> list[DatasetSpec]:
    """Return the description that this process was told, if it was."""
    return []


def tell(spec: DatasetSpec) -> None:
    """Have :func:`dataset_of` return ``spec`` for a run's configuration, in a process that may have no data itself."""
    _told()[:] = [spec]


def dataset_of(settings: SourceSettings) -> DatasetSpec:
    """Return the description of the dataset of ``settings``; data without a schema are imported for it.

    Raises:
        ConfigurationError: if there is no such dataset, or keys contradict it.
        DataError: if its data are needed to describe it, and cannot be used.
    """
    for told in _told():
        return told
    source = Source.of(settings)
    spec = described(source)
    return spec.learned_as(settings.task, _choices(settings, spec, source))


def _choices(settings: SourceSettings, spec: DatasetSpec, source: Source) -> Choices:
    """Return what the keys say of the task, with the scales of targets if outputs are to be scaled."""
    choices = Choices.of(settings)
    if choices.target_scale == "none" or not spec.targets.numbers:
        return choices
    return replace(choices, scales=spec.scales or _scales(source))


@remembered(16)
def _scales(source: Source) -> tuple[tuple[float, float], ...]:
    """Return mean and standard deviation of each target of the training rows.

    Raises:
        ConfigurationError: if the rows are not here, as on a device whose schema does not say it, or all are equal.
    """
    spec = described(source)
    try:
        whole = encoded(spec, source)
    except (ConfigurationError, DataError) as error:
        raise ConfigurationError(
            f"target-scale: '{spec.name}' does not say how its targets are distributed, and its rows cannot be read "
            f"here ({error}); add scales = [[mean, deviation]] to its schema, or leave the key out"
        ) from error
    y = whole.train.y.astype(np.float64).reshape(-1, len(spec.targets.columns))
    if not y.std(axis=0).all():
        raise ConfigurationError(f"target-scale: a target of '{spec.name}' is the same in all training rows")
    return tuple((float(mean), float(std)) for mean, std in zip(y.mean(axis=0), y.std(axis=0), strict=True))


def task_of(settings: SourceSettings) -> Task:
    """Return what is learned from the dataset of ``settings``; raises as :func:`dataset_of`."""
    return dataset_of(settings).learned


def check_local(settings: SourceSettings) -> None:
    """Check that the dataset is where the keys say.

    Raises:
        ConfigurationError: if a revision of the hub is named, and the rows do not come from there.
        DataError: if they are to be read from ``data-dir``, and are not there.
    """
    revision_of(settings)


def revision_of(settings: SourceSettings) -> str:
    """Return the commit, tag or branch of the hub that the dataset's rows are of; "" if they come from elsewhere.

    Raises:
        ConfigurationError, DataError: as :func:`check_local`.
    """
    source = Source.of(settings)
    spec = described(source)
    revision = "" if spec.made else rows_of(spec, source).revision
    if source.revision and not revision:
        raise ConfigurationError(
            f"dataset-revision: the rows of '{source.name}' are not read from the hub, so that '{source.revision}' has "
            "no effect; leave it out"
        )
    return revision


def load_dataset(settings: FederationSettings) -> Dataset:
    """Load or generate the dataset of ``settings``, with its training and test split as they are.

    Raises:
        ConfigurationError: if there is no such dataset, or the task cannot be learned from it.
        DataError: if its files are missing or do not fit its schema.
    """
    source = Source.of(settings)
    spec = described(source)
    dataset: Dataset = resolve(spec.made)(settings, spec) if spec.made else encoded(spec, source)
    return dataset.read_by(settings.task, _choices(settings, spec, source))
