"""Synthetic data: clients that consist only of a histogram, drawn from a known distribution.

An example is a label, with the number 0 as its input. These datasets measure how well ``mdm`` estimates the
distribution (Scott, thesis, A.3.3 and A.1.2).
"""

from __future__ import annotations

import numpy as np

from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import numpy_generator
from florilegium.partitions.mdm_params import fingerprint, read_law
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.spec import Dataset, DatasetSpec, Split


def histograms(settings: FederationSettings, spec: DatasetSpec) -> Dataset:
    """Draw ``num-clients`` clients from the distribution ``mdm-params``; column ``client`` names them.

    The test split is empty, since it is not needed.

    Raises:
        ConfigurationError: if ``num-clients`` is 0, ``partitioner`` is not "natural", or the distribution has another
            number of categories.
    """
    clients = settings.num_clients
    if not clients or settings.partitioner != "natural":
        raise ConfigurationError(
            f"dataset: '{spec.name}' makes clients of its own: it needs partitioner = \"natural\" (found: "
            f"{settings.partitioner!r}) and num-clients ≥ 1 (found: {clients})"
        )
    law = read_law(settings.mdm_params, settings.samples_per_client)
    if law.categories != spec.classes:
        raise ConfigurationError(
            f"dataset: '{spec.name}' has {spec.classes} categories, but the distribution "
            f"'{settings.mdm_params}' has {law.categories}"
        )
    drawn = law.draw(clients, numpy_generator(settings.seed, "histograms"))
    labels = np.concatenate([np.repeat(np.arange(spec.classes), counts) for counts in drawn])
    names = np.repeat([f"{client:07d}" for client in range(clients)], drawn.sum(axis=1))
    train = Split(np.zeros((len(labels), 1), np.float32), labels, {"client": names})
    nothing = Split(train.x[:0], labels[:0], {"client": names[:0]})
    return Dataset(spec, train, nothing, fingerprint(settings.mdm_params))
