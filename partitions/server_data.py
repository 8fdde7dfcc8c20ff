"""Load the server's own examples: rows of the simulated dataset, synthetic examples, or those in a file."""

from __future__ import annotations

import numpy as np
import torch

from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import folder
from florilegium.partitions.clientdata import Examples, to_inputs
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.scaling import Scaling
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import DatasetSpec


def server_examples(settings: FederationSettings, *, deployed: bool = False) -> Examples:
    """Return the server's own examples, possibly none.

    Args:
        settings: key ``server-data`` names a file in the dataset's schema; without it, the examples come from the
            federation.
        deployed: whether the clients are real devices, so that there is no simulated federation to choose from.

    Raises:
        ConfigurationError: if the clients are devices and ``server-data`` is empty.
        DataError: if the file is missing or does not fit the schema.
    """
    spec = dataset_of(settings)
    if settings.server_data:
        from florilegium.partitions.sources.decode import decode_inputs
        from florilegium.partitions.sources.table_files import read_parquet

        path = folder(settings.server_data)
        x = decode_inputs(spec, read_parquet(path), str(path))
        return Examples(_scaled(spec, to_inputs(spec, x)), torch.zeros(len(x), dtype=torch.int64))
    if deployed:
        raise ConfigurationError(
            f"server-data: name a parquet file with the server's own examples, in the schema of '{spec.name}'; on "
            "real devices there is no dataset to choose them from"
        )
    federation, dataset = federate(settings)
    if dataset.server is not None:
        return Examples(to_inputs(spec, dataset.server.x), torch.from_numpy(dataset.server.y))
    rows = federation.server
    x = np.asarray(dataset.train.x[rows])
    return Examples(_scaled(spec, to_inputs(spec, x, dataset.vocabulary)), torch.from_numpy(dataset.train.y[rows]))


def _scaled(spec: DatasetSpec, x: torch.Tensor) -> torch.Tensor:
    """Return the server's inputs, by its own scaling where each client has one."""
    table = spec.table
    return x if table is None or not table.own else Scaling.of(x, table.scaled).apply(x)
