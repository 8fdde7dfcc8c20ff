"""The numbers that clients report besides arrays: their names, and the ranges in which the server believes them.

Most are the task's figures. A client class names its own in :attr:`florilegium.clients.core.base.BaseClient.reports`.
Replies with other names, or numbers outside of these ranges, are not used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from florilegium.clients.core.wire import GRADIENT_NORM, LARGEST, MOST_EXAMPLES, UPDATE_NORM
from florilegium.tasks.task import LOSS, Task


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


NUMBER, POSITIVE, SHARE = Range(-LARGEST, LARGEST), Range(0.0, LARGEST), Range(0.0, 1.0)
BYTES, EXAMPLES = Range(0.0, float(1 << 48)), Range(0.0, float(MOST_EXAMPLES))

Reports = Mapping[str, Range]
"""Ranges of reported numbers by name; a name is a regular expression, such as ``loss_stage\\d+``."""

ALWAYS: Reports = {"num-examples": EXAMPLES, "weight": EXAMPLES, "bytes-down": BYTES, "bytes-up": BYTES}
"""What the reply for every client contains."""
HOSTS: Reports = {UPDATE_NORM: POSITIVE, GRADIENT_NORM: POSITIVE}
"""What the host of a client adds."""
ROUNDING = 1e-4
"""How far below the task's least loss rounding may bring a loss, such as the divergence of two equal distributions."""
ENDINGS = ("", "_global")
"""Ends of the names under which the phases of most methods report the task's numbers."""
SUCCESS = "attack_success"
GOAL: Reports = {f"{SUCCESS}{ending}": SHARE for ending in ENDINGS}
"""What clients report from a test if attackers have a goal: for which share of examples they reach it."""
COST: Reports = {"epsilon": POSITIVE}
"""What every client reports if its examples are private."""


def measured(task: Task, ending: str = "") -> Reports:
    """Return the ranges of a task's loss and figures, with an ending behind their names."""
    ranges = {name: Range(max(one.low, -LARGEST), min(one.high, LARGEST)) for name, one in task.figures.items()}
    ranges = {LOSS: Range(task.least_loss - ROUNDING, LARGEST), **ranges}
    return {f"{name}{ending}": allowed for name, allowed in ranges.items()}


def validation(task: Task) -> Reports:
    """Return what every client reports from a test if examples are held out (key ``validation-fraction``)."""
    figures = {**measured(task), LOSS: Range(task.least_loss, LARGEST)}  # no objective, whose parts round
    return {f"validation_{name}": allowed for name, allowed in figures.items()}


def reports_of(client: type, task: Task) -> Reports:
    """Return what a client class and its bases report, by name."""
    found: dict[str, Range] = {}
    for base in reversed(client.__mro__):
        for ending in vars(base).get("endings", ()):
            found |= measured(task, ending)
        found |= vars(base).get("reports", {})
    return found | dict.fromkeys(task.sums, NUMBER)


def named(client: type, task: Task) -> list[str]:
    """Return the names in :func:`reports_of` that are no patterns."""
    return [name for name in reports_of(client, task) if re.fullmatch(r"[\w-]+", name)]


def usable(number: float) -> float:
    """Return ``number``, or NaN if it is infinite or larger than what may be reported."""
    return number if number in NUMBER else math.nan


def range_of(name: str, known: Reports) -> Range:
    """Return the range of a reported number.

    Raises:
        ValueError: if it is none of those that are ``known``.
    """
    allowed = known.get(name) or next((one for key, one in known.items() if re.fullmatch(key, name)), None)
    if allowed is None:
        raise ValueError(f"number '{name}' is not one that this method's clients report ({', '.join(known)})")
    return allowed


def check_reports(numbers: Mapping[str, Sequence[float]], known: Reports) -> None:
    """Check numbers that were reported; NaN is allowed, since a client may have nothing to compute them from.

    Args:
        numbers: for each name a number per client.
        known: what may be reported.

    Raises:
        ValueError: if a name is unknown, or a number outside of its range.
    """
    for name, values in numbers.items():
        allowed = range_of(name, known)
        low, high = allowed.low, allowed.high  # looked up once: a reply may have numbers of a thousand clients
        if wrong := [value for value in values if not (low <= value <= high or math.isnan(value))]:
            raise ValueError(f"number '{name}' is {wrong[0]:g}, not between {allowed.low:g} and {allowed.high:g}")
