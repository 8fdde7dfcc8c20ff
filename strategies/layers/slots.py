"""Client-level privacy without sampling: each client's slot, and noise that may be correlated between rounds.

A client of slot s takes part in the rounds s, s + E, s + 2E, … Its slot is a hash of its name, so that a client more or
less changes nobody else's. Nothing of this need be secret, as nothing is amplified.

A resumed run begins its mechanisms anew, with new noise: no secret has to be kept on disk, and a round that is carried
out twice costs twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from florilegium.common.errors import RunError
from florilegium.common.seeds import entropy
from florilegium.privacy.correlated import MECHANISMS, Kind, noise


@dataclass
class _Stream:
    """The releases of one phase, in successive rounds.

    Attributes:
        begun: the round of its first release.
        done: the last of its rounds, counted from ``begun``, whose charge is recorded.
        seed: of its noise; it stays in memory.
    """

    begun: int
    done: int = 0
    seed: int = field(default_factory=lambda: secrets.randbits(128))


class Slots:
    """The slots of a run's clients, and the mechanism that makes its noise.

    Args:
        kind: the mechanism.
        period: E, number of slots.
        rounds: T, number of rounds of the run.
        seed: the run's seed.
    """

    def __init__(self, kind: Kind, period: int, rounds: int, seed: int) -> None:
        self.mechanism = MECHANISMS[kind](period, rounds)
        self._seed = seed
        self._streams: dict[str, _Stream] = {}
        self._slots: dict[str, int] = {}

    def members(self, clients: Sequence[str], number: int) -> list[str]:
        """Return those of ``clients`` whose slot is that of round ``number``."""
        period, slots = self.mechanism.period, self._slots
        for client in clients:
            if client not in slots:  # a hash of each of a million clients would take longer than a round
                slots[client] = entropy(self._seed, "slot", client) % period
        return [client for client in clients if slots[client] == number % period]

    def charge(self, phase: str, number: int) -> float:
        """Return by how much a release of ``phase`` in round ``number`` raises the phase's squared sensitivity."""
        stream = self._streams.get(phase) or _Stream(number)
        return sum(self.mechanism.charge(place) for place in range(stream.done + 1, number - stream.begun + 2))

    def next_charge(self, number: int) -> float:
        """Return what a release of each phase so far, or of one, in round ``number`` would charge."""
        return sum(self.charge(phase, number) for phase in self._streams or [""])

    def noise(
        self, phase: str, number: int, deviation: float, clients: Sequence[str], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, NDArray[Any]]:
        """Return the noise of a phase's sum over ``clients`` in round ``number``; its charge counts as recorded.

        Raises:
            RunError: if the phase has had its release of this round, or clients of another slot take part.
        """
        stream = self._streams.setdefault(phase, _Stream(number))
        place = number - stream.begun + 1
        if place <= stream.done or len(self.members(clients, number)) < len(clients):
            raise RunError(
                f"phase '{phase}' asks clients of other slots, or twice in round {number}, which privacy.sampling = "
                "'slots' does not account for"
            )
        stream.done = place
        return noise(self.mechanism, stream.seed, place, deviation, shapes)
