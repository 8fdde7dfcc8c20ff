"""Load a dataset: what it is, and its rows, in one direction.

A row's way is: where it is (:mod:`florilegium.partitions.sources.source`), what it is
(:mod:`florilegium.partitions.describing`), its arrays on disk (:mod:`florilegium.partitions.encoding`), who holds it
(:mod:`florilegium.partitions.federation`), and a client's tensors (:mod:`florilegium.partitions.clientdata`).
"""

from __future__ import annotations

from florilegium.common.references import resolve
from florilegium.partitions.describing import described
from florilegium.partitions.encoding import encoded, rows_of
from florilegium.partitions.settings import FederationSettings, SourceSettings
from florilegium.partitions.sources.source import Source
from florilegium.partitions.spec import Dataset, DatasetSpec
from florilegium.tasks.choices import Choices
from florilegium.tasks.task import Task


def dataset_of(settings: SourceSettings) -> DatasetSpec:
    """Return the description of the dataset of ``settings``; data without a schema are imported for it.

    Raises:
        ConfigurationError: if there is no such dataset, or keys contradict it.
        DataError: if its data are needed to describe it, and cannot be used.
    """
    return described(Source.of(settings)).learned_as(settings.task, Choices.of(settings))


def task_of(settings: SourceSettings) -> Task:
    """Return what is learned from the dataset of ``settings``; raises as :func:`dataset_of`."""
    return dataset_of(settings).learned


def check_local(settings: SourceSettings) -> None:
    """Raise :class:`DataError` if the dataset is to be read from ``data-dir``, and is not there."""
    source = Source.of(settings)
    spec = described(source)
    if not spec.made:
        rows_of(spec, source)


def load_dataset(settings: FederationSettings) -> Dataset:
    """Load or generate the dataset of ``settings``, with its training and test split as they are.

    Raises:
        ConfigurationError: if there is no such dataset, or the task cannot be learned from it.
        DataError: if its files are missing or do not fit its schema.
    """
    source = Source.of(settings)
    spec = described(source)
    dataset: Dataset = resolve(spec.made)(settings, spec) if spec.made else encoded(spec, source)
    return dataset.read_by(settings.task, Choices.of(settings))
