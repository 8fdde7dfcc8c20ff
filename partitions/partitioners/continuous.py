"""Clients that differ in a number: rows sorted by it, with noise, and cut into equal parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import ContinuousPartitioner, Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError, nearest
from florilegium.partitions.partitioners.keys import ContinuousKeys
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.shares import Rows
from florilegium.partitions.spec import Dataset


def columns(settings: FederationSettings, dataset: Dataset, rows: Rows) -> dict[str, NDArray[Any]]:
    """Return the additional column ``number``, which the rows are sorted by.

    Raises:
        ConfigurationError: if ``continuous.by`` is no column of numbers.
        DataError: if a value is no finite number.
    """
    by = settings.own_keys(ContinuousKeys).by
    numbers = list(dataset.spec.table.numbers) if dataset.spec.table else []
    if not by:
        y = dataset.train.y[rows].reshape(len(rows), -1)
        if y.shape[1] != 1:
            raise ConfigurationError(
                f"continuous.by: '{dataset.spec.name}' has {y.shape[1]} targets; name a column to sort by"
            )
        values = y[:, 0].astype(np.float64)
    elif by in numbers:
        values = np.asarray(dataset.train.x[rows, numbers.index(by)], np.float64)
    elif by in dataset.train.clients:
        try:
            values = dataset.train.clients[by][rows].astype(np.float64)
        except ValueError as error:
            raise ConfigurationError(f"continuous.by: column '{by}' does not hold numbers: {error}") from error
    else:
        known = [*numbers, *dataset.train.clients]
        raise ConfigurationError(
            f"continuous.by: '{by}' is no column of '{dataset.spec.name}' to sort by{nearest(by, known)} Known: "
            f'{", ".join(known) or "none"}; "" is the label.'
        )
    if not np.isfinite(values).all():
        raise DataError(
            f"continuous.by: '{by or 'label'}' has values that are no finite numbers; choose another column"
        )
    # Standardised here in double precision: flwr-datasets does it in single precision, where large numbers overflow.
    spread = values.std()
    return {"number": (values - values.mean()) / spread if spread else np.zeros(len(values))}


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``ContinuousPartitioner``, which raises ``ValueError`` if all numbers are equal."""
    own = settings.own_keys(ContinuousKeys)
    return ContinuousPartitioner(settings.num_clients, "number", own.strictness, seed=seed)
