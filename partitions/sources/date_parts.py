"""The parts of a date that become features; free of Arrow, for the configuration keys."""

from __future__ import annotations

from collections.abc import Sequence

DAYS = "days"
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}
"""Days after which a part comes again; day 0, 1970-01-01, was a Thursday."""
PARTS = (DAYS, *PERIODS)


def width(parts: Sequence[str]) -> int:
    """Return the number of features that a column of dates becomes: one for the days, two for each other part."""
    return sum(1 if part == DAYS else 2 for part in parts)
