"""Cost of secure aggregation: bytes and processor time of a device and of the server, without training and network."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from florilegium.privacy.secure_sum.entry import Entry
from florilegium.privacy.secure_sum.masks import Vector
from florilegium.privacy.secure_sum.party import TOKEN, Party
from florilegium.privacy.secure_sum.plan import plan
from florilegium.privacy.secure_sum.ring import PRECISION, at_random, coarse_error, random_error
from florilegium.privacy.secure_sum.tally import Tally

P = ParamSpec("P")
T = TypeVar("T")

PARTIES, ENTRIES = (10, 100, 1000), (120_000, 11_000_000)
COLLUDING, VANISHING, FAILURE = 0.1, 0.2, 1e-9
NUMBERS = 12
"""64-bit numbers of a vector with two metrics."""
_WHOLE = 3
"""Number of parties that mask a whole vector; the others' are empty, since all would do the same work."""


@dataclass(frozen=True)
class Cost:
    """Costs of one secure sum.

    Attributes:
        device, server: seconds of processor time of a device, and of the server, if a twentieth of the parties vanish.
        traffic: bytes that a device receives and sends ÷ those of a plain exchange of 32-bit arrays.
        bits: size of the ring's integers.
        neighbours: number of neighbours of a device.
    """

    device: float
    server: float
    traffic: float
    bits: int
    neighbours: int


def measure(parties: int, entries: int) -> Cost:
    """Carry out a secure sum of vectors of ``entries`` numbers of this many parties; return what it costs."""
    coarse = (random_error if at_random(entries, parties) else coarse_error)(entries, parties) <= PRECISION
    sizes = (NUMBERS, entries) if coarse else (NUMBERS + entries, 0)
    token, found = secrets.token_bytes(TOKEN), plan(parties, COLLUDING, VANISHING, FAILURE)
    device, server, extra = _Clock(), _Clock(), 0
    members, entry, public = {number: Party(token) for number in range(parties)}, Entry(token), dict[int, bytes]()
    for number, party in members.items():
        invitation = entry.invitation(number)
        said = device.run(party.enter, invitation)
        public[number] = server.run(entry.admit, number, said)
        extra += len(invitation) + len(said)
    tally = Tally(token, found, public)
    told = server.run(tally.introductions)
    for number, message in told.items():
        shares = device.run(members[number].share, message)
        server.run(tally.take_shares, number, shares)
        extra += len(message) + len(shares)
    for number, message in server.run(tally.forwarded).items():
        complaints = device.run(members[number].open, message)
        server.run(tally.take_complaints, number, complaints)
        extra += len(message) + len(complaints)
    forwarded = server.run(tally.members)
    vanished, masking = {*range(parties // 20)}, _Clock()
    for number, message in forwarded.items():
        extra += len(message)
        if number not in vanished:
            whole = number >= parties - _WHOLE
            vector = Vector.zeros(*sizes) if whole else Vector.zeros(0, 0)
            (masking if whole else _Clock()).run(members[number].mask, vector, message)
    questions = server.run(tally.questions, {*forwarded} - vanished)
    for number, message in questions.items():
        revealed = device.run(members[number].reveal, message)
        server.run(tally.take_revealed, number, revealed)
        extra += len(message) + len(revealed)
    server.run(tally.unmask, Vector.zeros(*sizes))
    vector_bytes = 8 * sizes[0] + 4 * sizes[1]
    traffic = (4 * entries + vector_bytes + extra / parties) / (8 * entries)
    seconds = device.seconds / parties + masking.seconds / _WHOLE
    return Cost(seconds, server.seconds, traffic, 32 if coarse else 64, found.degree)


class _Clock:
    """Adds up processor time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        begun = time.process_time()
        result = work(*args, **kwargs)
        self.seconds += time.process_time() - begun
        return result
