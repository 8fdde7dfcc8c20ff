"""Load a dataset: what it is, and its rows, in one direction.

A row's way is: where it is (:mod:`florilegium.partitions.sources.source`), what it is
(:mod:`florilegium.partitions.describing`), its arrays on disk (:mod:`florilegium.partitions.encoding`), who holds it
(:mod:`florilegium.partitions.federation`), and a client's tensors (:mod:`florilegium.partitions.clientdata`).
"""

from __future__ import annotations

import importlib
from dataclasses import replace

from florilegium.partitions.describing import described
from florilegium.partitions.encoding import encoded, local_folder
from florilegium.partitions.settings import FederationSettings, SourceSettings
from florilegium.partitions.sources.source import Source
from florilegium.partitions.spec import Dataset, DatasetSpec
from florilegium.tasks.task import Task


def dataset_of(settings: SourceSettings) -> DatasetSpec:
    """Return the description of the dataset of ``settings``; data without a schema are imported for it.

    Raises:
        ConfigurationError: if there is no such dataset, or keys contradict it.
        DataError: if its data are needed to describe it, and cannot be used.
    """
    spec = described(Source.of(settings))
    return replace(spec, task=settings.task) if settings.task else spec


def task_of(settings: SourceSettings) -> Task:
    """Return what is learned from the dataset of ``settings``; raises as :func:`dataset_of`."""
    return dataset_of(settings).learned


def check_local(settings: SourceSettings) -> None:
    """Raise :class:`DataError` if the dataset is to be read from ``data-dir``, and is not there."""
    source = Source.of(settings)
    local_folder(described(source), source)


def load_dataset(settings: FederationSettings) -> Dataset:
    """Load or generate the dataset of ``settings``, with its training and test split as they are.

    Raises:
        ConfigurationError: if there is no such dataset, or the task cannot be learned from it.
        DataError: if its files are missing or do not fit its schema.
    """
    source = Source.of(settings)
    spec = described(source)
    dataset = _made(spec, settings) if spec.made else encoded(spec, source)
    return dataset.read_by(settings.task)


def _made(spec: DatasetSpec, settings: FederationSettings) -> Dataset:
    """Generate a synthetic dataset."""
    module, _, function = spec.made.partition(":")
    dataset: Dataset = getattr(importlib.import_module(module), function)(settings, spec)
    return dataset
