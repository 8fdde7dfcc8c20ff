"""Whether an order that a paper claims holds in our runs: the paired difference over seeds, and a word for it."""

from __future__ import annotations

from collections.abc import Mapping

from florilegium.apps.reports.statistics import estimate

MEANING = (
    "Claims are orders that a paper states, not its numbers. *Difference*: mean over seeds of the first figure minus "
    "the second, ± half its 95 % interval (Student's t, paired by seed). *Holds*: the interval is above 0; *does not "
    "hold*: below; *not distinguishable*: 0 is in it. Each claim is judged alone: of twenty, chance decides one."
)
HEAD = ("claimed by", "better", "worse", "difference", "verdict")
"""Columns of verdicts; the first three name a claim."""


def verdict(better: Mapping[int, float], worse: Mapping[int, float], *, lower: bool = False) -> tuple[str, str]:
    """Return the difference, and whether it is above 0 beyond doubt.

    Args:
        better, worse: a figure of the completed runs of both sides, by seed.
        lower: whether smaller figures are better; the difference is then the second minus the first.
    """
    sign = -1 if lower else 1
    gains = [sign * (better[seed] - worse[seed]) for seed in sorted(better.keys() & worse.keys())]
    if not gains:
        return "–", "no run completed"
    found = estimate(gains)
    if len(gains) == 1:
        return f"{found.mean:+.3f}", "no interval"
    word = "holds" if found.mean > found.margin else "does not hold" if found.mean < -found.margin else ""
    return f"{found.mean:+.3f} ± {found.margin:.3f}", word or "not distinguishable"
