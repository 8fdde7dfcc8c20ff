"""Clients with a few classes each, and of each class an amount that follows a given distribution (Li et al. 2020)."""

from __future__ import annotations

import csv
import math

import numpy as np
from datasets import Dataset as HubDataset
from flwr_datasets.partitioner import DistributionPartitioner, Partitioner
from numpy.typing import NDArray

from florilegium.common.errors import ConfigurationError, DataError
from florilegium.common.settings import folder
from florilegium.partitions.partitioners.keys import DistributionKeys
from florilegium.partitions.settings import FederationSettings


def make(settings: FederationSettings, rows: HubDataset, seed: int) -> Partitioner:
    """Return flwr-datasets' ``DistributionPartitioner``.

    Raises:
        ConfigurationError: if ``num-clients`` is no multiple of the number of classes, or there are not enough classes.
        DataError: if the file is malformed or does not fit the numbers of classes and clients.
    """
    own, n = settings.own_keys(DistributionKeys), settings.num_clients
    labels = sorted(rows.unique("label"))
    if n % len(labels):
        raise ConfigurationError(
            f"num-clients: 'distribution' gives every class to equally many clients: use a multiple of {len(labels)}, "
            f"the number of classes (found: {n})"
        )
    if own.classes > len(labels):
        raise ConfigurationError(
            f"distribution.classes: {own.classes} classes of each client, but the data have {len(labels)}"
        )
    shape = (len(labels), own.classes * n // len(labels))
    if own.file:
        weights = read_numbers(own.file, shape)
        if not own.rescale and (weights != np.floor(weights)).any():
            raise DataError(f"distribution.file: {own.file} has fractions; without distribution.rescale it counts rows")
        if own.rescale and not (weights.sum(axis=1) > 0).all():
            raise DataError(
                f"distribution.file: {own.file} has a line of zeros only; every class needs a positive number"
            )
    elif not own.rescale:
        raise ConfigurationError("distribution.rescale: log-normal numbers are no numbers of rows; set it to true")
    else:
        weights = np.random.default_rng(seed).lognormal(0.0, own.sigma, shape)
    return DistributionPartitioner(
        distribution_array=weights,
        num_partitions=n,
        num_unique_labels_per_partition=own.classes,
        partition_by="label",
        preassigned_num_samples_per_label=own.preassigned,
        rescale=own.rescale,
        seed=seed,
    )


def read_numbers(path: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Read a CSV of finite numbers ≥ 0 without a header.

    Args:
        path: the file.
        shape: the expected numbers of lines and of columns.

    Raises:
        DataError: if the file cannot be read or has other contents; the message names the line.
    """
    what = f"distribution.file: {path}"
    try:
        with folder(path).open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{what} cannot be read: {error}") from error
    if len(lines) != shape[0]:
        raise DataError(f"{what} has {len(lines)} lines; expected {shape[0]}, one for each class")
    for number, line in enumerate(lines, 1):
        if len(line) != shape[1]:
            raise DataError(
                f"{what}, line {number}: {len(line)} numbers; expected {shape[1]}, one for each client with the class"
            )
        for cell in line:
            try:
                value = float(cell)
            except ValueError:
                value = math.nan
            if not 0 <= value < math.inf:
                raise DataError(f"{what}, line {number}: '{cell}' is no number ≥ 0")
    return np.array(lines, dtype=np.float64)
