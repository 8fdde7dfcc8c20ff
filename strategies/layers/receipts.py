"""The rounds in which the server has last used each client's update: what clients that keep residuals must know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Receipts:
    """For each phase and client the last round whose update the server has used.

    A reply may be lost, late or rejected after its client has stored a new residual. The next request to the client
    names the round from whose residual it goes on (:mod:`florilegium.clients.layers.compression`).
    """

    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = {}

    def add(self, phase: str, clients: Iterable[str], round: int) -> None:
        """Note that the updates which ``clients`` returned in phase ``phase`` of a round have been used."""
        self._used.setdefault(phase, {}).update(dict.fromkeys(clients, round))

    def of(self, phase: str, clients: Iterable[str]) -> Sequence[int]:
        """Return the last round of each client whose update of this phase was used; 0: none."""
        known = self._used.get(phase, {})
        return tuple(known.get(client, 0) for client in clients)

    def facts(self) -> dict[str, Any]:
        """Return the rounds for checkpoints; JSON values."""
        return self._used

    def take_back(self, facts: Mapping[str, Any]) -> None:
        """Restore the rounds that :meth:`facts` returned."""
        self._used = {phase: dict(clients) for phase, clients in facts.items()}
