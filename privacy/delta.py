"""δ of a guarantee, the probability that it fails: what is too large for it."""

from __future__ import annotations

MOST_DELTA = 0.5
"""Larger values of δ are refused: they promise nothing."""


def delta_warning(key: str, delta: float, units: int, what: str) -> str:
    """Return a warning if δ is not below one over the number of protected units, "" if it is.

    A mechanism that publishes each of N units whole with probability δ is (0, δ)-private; with δ ≥ 1/N it publishes at
    least one of them on average.

    Args:
        key: the configuration key of δ.
        delta: δ.
        units: N, the number of units that may take part.
        what: what the units are, such as "clients".
    """
    if delta * units < 1:
        return ""
    return (
        f"{key}: δ = {delta:g} is not below 1/{units}, one over the number of {what}: it would allow to publish one of "
        "them whole"
    )
