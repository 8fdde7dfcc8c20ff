"""The update that the server makes by the clients' training on its own examples, to which FLTrust compares others."""

from __future__ import annotations

from functools import cached_property
from typing import cast

import numpy as np
from torch import nn

from florilegium.clients.core.network import network_for
from florilegium.clients.core.settings import ClientSettings
from florilegium.clients.core.training import train
from florilegium.clients.core.wire import of_network
from florilegium.common.errors import ConfigurationError
from florilegium.common.seeds import torch_generator
from florilegium.models.parameters import Arrays, get_arrays, set_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import dataset_of, task_of
from florilegium.partitions.server_data import server_examples
from florilegium.strategies.exchange.requests import Exchange
from florilegium.strategies.settings.server import ServerSettings


def check_examples(settings: ServerSettings, *, deployed: bool) -> None:
    """Raise :class:`ConfigurationError` if the server has no examples with labels."""
    key = f"aggregation: '{settings.aggregation}' needs examples of the server's own with labels"
    if deployed or settings.server_data:
        raise ConfigurationError(f"{key}: those of server-data have none; in simulations set server-examples instead")
    if not settings.server_examples:
        raise ConfigurationError(f"{key}: set server-examples, such as 100")


class Trusted:
    """The server's own training.

    Args:
        settings: the run's configuration.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    @cached_property
    def _network(self) -> nn.Module:
        s = self._settings
        return network_for(dataset_of(s), s, s.seed)

    @cached_property
    def _examples(self) -> Examples:
        return server_examples(self._settings)

    def update(self, exchange: Exchange) -> Arrays:
        """Return the server's update of what an exchange sends, float64; 0 for arrays beside the network."""
        s, sent = self._settings, exchange.send or {}
        set_arrays(self._network, of_network(sent))
        rng = torch_generator(s.seed, "robust", "server", exchange.number, exchange.phase)
        # Every run's settings are of both kinds.
        train(
            self._network, self._examples, cast(ClientSettings, s), rng, task=task_of(s), decay=s.decay(exchange.number)
        )
        trained = get_arrays(self._network)
        return {
            name: np.subtract(trained[name], array, dtype=np.float64) if name in trained else np.zeros(array.shape)
            for name, array in sent.items()
        }
