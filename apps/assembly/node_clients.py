"""Sources of a node's clients and their data: a simulated federation, or one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from florilegium.common.errors import DataError
from florilegium.partitions.clientdata import CPU, ClientData, ClientRows, simulated, supplied
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from florilegium.partitions.settings import FederationSettings
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import DatasetSpec
from florilegium.privacy.allowance import Allowance
from florilegium.privacy.secure_sum.identity import Identity
from florilegium.tasks.weights import FEDERATION


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


@dataclass(frozen=True)
class Supply:
    """What a node without data must know of a simulated federation, besides the rows of clients.

    Attributes:
        described: the description of the dataset, as the run's configuration asks for it.
        spec, vocabulary: those of the dataset.
        fingerprint: hash of the dataset.
        class_counts: training examples of each class, as :meth:`SimulatedClients.class_counts`; None: nobody asks.
    """

    described: DatasetSpec
    spec: DatasetSpec
    vocabulary: Vocabulary | None
    fingerprint: str
    class_counts: NDArray[np.int64] | None

    @staticmethod
    def of(settings: FederationSettings) -> Supply:
        """Return what is known of the federation of ``settings``, on a machine that has its data."""
        _, dataset = federate(settings)
        described = dataset_of(settings)
        asked = described.learned.choices.class_weights == FEDERATION
        counts = SimulatedClients(settings, CPU).class_counts() if asked else None
        return Supply(described, dataset.spec, dataset.vocabulary, dataset.fingerprint, counts)


class SuppliedClients:
    """The clients of a simulation's node that holds no data: it is given the rows of those that it is to run."""

    pinned = False
    allowance = None
    capacity = 1.0
    identity = None

    def __init__(self, supply: Supply, device: torch.device) -> None:
        self._supply, self._device = supply, device
        self._rows: Mapping[str, ClientRows] = {}

    def give(self, rows: Mapping[str, ClientRows]) -> None:
        """Give the rows of clients, by id, in place of those that were given before."""
        self._rows = rows

    def clients(self) -> Sequence[str]:
        """Return the ids of the clients whose rows are here."""
        return [*self._rows]

    def data(self, client_id: str) -> ClientData:
        """Return the data of a client; raise :class:`DataError` if its rows are not here."""
        if client_id not in self._rows:
            raise DataError(f"the rows of client '{client_id}' were not given to this node")
        return supplied(self._supply.spec, self._supply.vocabulary, self._rows[client_id], self._device)

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return how many training examples of each class the clients have that train with labels, (C,)."""
        return self._supply.class_counts


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
