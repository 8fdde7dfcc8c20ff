"""Sources of a node's clients and their data: a simulated federation, or one device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.clientdata import ClientData, simulated
from florilegium.partitions.federation import federate
from florilegium.partitions.settings import FederationSettings
from florilegium.privacy.allowance import Allowance
from florilegium.privacy.secure_sum.identity import Identity


class SimulatedClients:
    """The clients of a simulation's node: it can run any client of the federation."""

    pinned = False
    allowance = None
    capacity = 1.0
    identity = None

    def __init__(self, settings: FederationSettings, device: torch.device) -> None:
        self._federation, self._dataset = federate(settings)
        self._device = device

    def clients(self) -> Sequence[str]:
        """Return the ids of all clients."""
        return [str(i) for i in range(len(self._federation))]

    def data(self, client_id: str) -> ClientData:
        """Return the data of a client of the federation; raise :class:`DataError` if there is no such client."""
        if not client_id.isdecimal() or int(client_id) >= len(self._federation):
            raise DataError(f"there is no client '{client_id}' in a federation of {len(self._federation)}")
        return simulated(self._federation, self._dataset, int(client_id), self._device)

    def class_counts(self) -> NDArray[np.int64]:
        """Return how many training examples of each class the clients have that train with labels, (C,)."""
        trains = ~self._federation.unseen & self._federation.labeled
        return np.asarray(self._federation.class_counts(self._dataset)[trains].sum(axis=0))


class DeviceClient:
    """The single client of a device, with the data named in the node's configuration.

    Args:
        client_id: the device's client id.
        data: its data.
        allowance: the total privacy cost that the owner allows; None: any.
        capacity: the share of each layer's channels that the device can hold.
        identity: the device's identity, and those that it knows.
    """

    pinned = True

    def __init__(
        self,
        client_id: str,
        data: ClientData,
        allowance: Allowance | None = None,
        capacity: float = 1.0,
        identity: Identity | None = None,
    ) -> None:
        self._id = client_id
        self._data = data
        self.allowance = allowance
        self.capacity = capacity
        self.identity = identity

    def clients(self) -> Sequence[str]:
        """Return the device's client id."""
        return [self._id]

    def data(self, client_id: str) -> ClientData:
        """Return the device's data; raise :class:`DataError` for any other client id."""
        if client_id != self._id:
            raise DataError(f"this device holds the data of client '{self._id}', not of '{client_id}'")
        return self._data

    def class_counts(self) -> None:
        """A device knows its own classes alone."""
