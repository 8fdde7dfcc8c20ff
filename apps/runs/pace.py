"""How fast a run is, when it will end, and its figures as a curve of characters, all from ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from florilegium.strategies.folder.metrics_file import TRAINING

RECENT = 20
"""Rounds whose pace counts: a run may slow down, or have been resumed on another machine."""
_EIGHTHS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Pace:
    """How fast the last rounds were.

    Attributes:
        clients: clients trained a second, those that failed left out.
        left: seconds that the remaining rounds will take.
    """

    clients: float
    left: float


def pace_of(lines: Sequence[Mapping[str, Any]], rounds: int) -> Pace | None:
    """Return the pace of the last rounds; None before two of them have ended.

    Args:
        lines: the lines of ``metrics.jsonl``, of which ``seconds`` counts from the run's start.
        rounds: number of rounds that the run will have.
    """
    recent = lines[-RECENT - 1 :]
    seconds = recent[-1]["seconds"] - recent[0]["seconds"] if len(recent) > 1 else 0.0
    if seconds <= 0:
        return None
    trained = [line.get(TRAINING, {}) for line in recent[1:]]
    clients = sum(entry.get("clients", 0) - entry.get("failed", 0) for entry in trained)
    done = recent[-1]["round"] - recent[0]["round"]
    return Pace(clients / seconds, seconds / done * max(0, rounds - recent[-1]["round"]))


def curve(points: Sequence[tuple[int, float]], width: int, height: int = 6) -> list[str]:
    """Return a curve as lines of text, with its largest and smallest value before it, and the rounds below.

    Args:
        points: rounds, ascending, and values; at least one.
        width: characters that a line may have; at least 30.
        height: lines of the curve itself.
    """
    low, high = min(value for _, value in points), max(value for _, value in points)
    labels = f"{high:.4g}", f"{low:.4g}"
    margin = max(map(len, labels)) + 1
    first, last = points[0][0], points[-1][0]
    columns = min(width - margin, last - first + 1)
    shown: list[float] = []  # a value for each column: the last that was known by then
    for at in range(columns):
        until = first + (last - first) * at / max(1, columns - 1)
        shown.append(next(value for number, value in reversed(points) if number <= until + 1e-9))
    levels = [1 + round((value - low) / (high - low or 1) * (8 * height - 1)) for value in shown]
    lines = []
    for row in reversed(range(height)):
        label = labels[0] if row == height - 1 else labels[1] if not row else ""
        lines.append(label.rjust(margin - 1) + " " + "".join(_EIGHTHS[max(0, min(8, one - 8 * row))] for one in levels))
    ends = (
        f"{first}{str(last).rjust(columns - len(str(first)))}" if columns > len(f"{first}{last}") else f"{first}–{last}"
    )
    return [line.rstrip() for line in [*lines, " " * margin + ends]]


def in_words(seconds: float) -> str:
    """Return a time as people say it: "40 s", "3 min", "2 h 5 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
