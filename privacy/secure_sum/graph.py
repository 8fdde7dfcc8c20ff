"""The graph of a secure sum: who shares secrets and masks with whom."""

from __future__ import annotations

from collections.abc import Sequence
from random import SystemRandom


def neighbours(parties: Sequence[int], degree: int) -> dict[int, list[int]]:
    """Return the neighbours of each party in a random connected graph, in which everybody has ``degree`` neighbours.

    The parties stand in a circle in random order, and each is joined to the ``degree``/2 nearest on both sides (a
    Harary graph); or to all others.

    Args:
        parties: n distinct numbers.
        degree: k, even, or n − 1.
    """
    n = len(parties)
    if degree == n - 1:
        return {party: [other for other in parties if other != party] for party in parties}
    if degree % 2 or not 0 < degree < n:
        raise ValueError(f"{n} parties cannot have {degree} neighbours each")
    circle = list(parties)
    SystemRandom().shuffle(circle)
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    return {party: [circle[(place + step) % n] for step in steps] for place, party in enumerate(circle)}
