"""Rows of clients in Ray's object store, for machines that hold no data.

Each client's rows are an object that belongs to the server, put there when a message first names the client. A machine
fetches it once, from where all its workers map it into memory, and may drop it if its store is full; then it fetches it
again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ray

from florilegium.cluster.worker import Place


class Rows(Protocol):
    """Rows of a client, such as :class:`florilegium.partitions.clientdata.ClientRows`."""

    def __len__(self) -> int:
        """Return how many rows they are."""

    @property
    def nbytes(self) -> int:
        """Bytes of their arrays."""


class Stock:
    """The rows of a run's clients, and which machine has been sent which.

    Args:
        load: returns the rows of a client.
        total: number of rows of the whole dataset.
    """

    def __init__(self, load: Callable[[str], Rows], total: int) -> None:
        self._load, self._total = load, total
        self._objects: dict[str, Any] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._sent: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def held(self, clients: Sequence[str], place: Place) -> int:
        """Return how many of the clients' rows were sent to a machine before."""
        return len(self._sent.get((place.node, place.name), set()).intersection(clients))

    def send(self, clients: Sequence[str], place: Place) -> list[Any]:
        """Return the references of the clients' rows, in order, for a worker that is at ``place``."""
        for client in clients:
            if client not in self._objects:
                rows = self._load(client)
                self._objects[client], self._sizes[client] = ray.put(rows), (len(rows), rows.nbytes)
        self._sent[place.node, place.name].update(clients)
        return [self._objects[client] for client in clients]

    def said(self) -> str:
        """Return how many rows each machine was sent, in words."""
        lines = []
        for (_, name), clients in sorted(self._sent.items(), key=lambda item: item[0][1]):
            rows, size = (sum(self._sizes[client][kind] for client in clients) for kind in (0, 1))
            share = rows / max(1, self._total)
            lines.append(f"{name} {rows} of {self._total} ({share:.0%}, {size / 1e6:.1f} MB)")
        return ", ".join(lines)
