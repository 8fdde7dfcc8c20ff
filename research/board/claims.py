"""What papers claim of attacks and defences, as orders of two cells of a board, and whether they hold in its runs.

Orders alone are entered, not the papers' numbers, whose settings are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from florilegium.apps.reports.statistics import estimate

MEANING = (
    "Claims are orders that a paper states, not its numbers. *Difference*: mean over seeds of the first accuracy minus "
    "the second, ± half its 95 % interval (Student's t, paired by seed). *Holds*: the interval is above 0; *does not "
    "hold*: below; *not distinguishable*: 0 is in it."
)


@dataclass(frozen=True)
class Point:
    """A cell of a board: an attack, a defence, and a figure of its runs."""

    attack: str
    defence: str
    figure: str = "accuracy"

    def __str__(self) -> str:
        received = " (received model)" if self.figure.endswith("_global") else ""
        return f"{self.defence} under {self.attack}{received}"


@dataclass(frozen=True)
class Claim:
    """A paper's claim that more accuracy is left in one cell than in another."""

    paper: str
    better: Point
    worse: Point


def _against(paper: str, better: str, worse: Sequence[str], attacks: Sequence[str]) -> Iterator[Claim]:
    for attack in attacks:
        for other in worse:
            yield Claim(paper, Point(attack, better), Point(attack, other))


CLIPPING, BUCKETING = "Karimireddy et al. 2021", "Karimireddy et al. 2022"
NEIGHBOURS, STRONGEST, DITTO = "Allouah et al. 2023", "Shejwalkar and Houmansadr 2021", "Li et al. 2021 (Ditto)"
CLAIMS: tuple[Claim, ...] = (
    *_against(CLIPPING, "centred-clipping", ("median", "multi-krum", "geometric-median"), ("little-is-enough",)),
    *_against(BUCKETING, "median-of-buckets", ("median",), ("mimic", "sign-flip", "inner-product")),
    *_against(
        NEIGHBOURS, "trimmed-mean-of-neighbours", ("trimmed-mean",),
        ("sign-flip", "label-flip", "inner-product", "little-is-enough"),
    ),
    Claim(STRONGEST, Point("little-is-enough", "trimmed-mean"), Point("min-max", "trimmed-mean")),
    Claim(STRONGEST, Point("little-is-enough", "bulyan"), Point("min-max", "bulyan")),
    Claim(DITTO, Point("sign-flip", "ditto"), Point("sign-flip", "fedavg-ft", "accuracy_global")),
    Claim(DITTO, Point("sign-flip", "ditto"), Point("sign-flip", "fedavg-ft-krum", "accuracy_global")),
)  # fmt: skip
"""Claims of papers, each tested by every board that has both cells."""


HEAD = ("claimed by", "more accuracy", "less accuracy", "difference", "verdict")
"""Columns of verdicts; the first three name a claim."""


def named(claim: Claim) -> list[str]:
    """Return a claim in words: its paper, and the two cells."""
    return [claim.paper, str(claim.better), str(claim.worse)]


def verdicts(values: Callable[[Point], Mapping[int, float] | None]) -> list[list[str]]:
    """Return a row, as in ``HEAD``, for each claim that a board can test.

    Args:
        values: returns the figure of each completed run of a cell, by seed; None if the board has no such cell.
    """
    rows = []
    for claim in CLAIMS:
        better, worse = values(claim.better), values(claim.worse)
        if better is None or worse is None:
            continue
        gains = [better[seed] - worse[seed] for seed in sorted(better.keys() & worse.keys())]
        rows.append([*named(claim), *_verdict(gains)])
    return rows


def _verdict(gains: Sequence[float]) -> tuple[str, str]:
    """Return the difference, and whether it is above 0 beyond doubt."""
    if not gains:
        return "–", "no run completed"
    found = estimate(gains)
    if len(gains) == 1:
        return f"{found.mean:+.3f}", "no interval"
    word = "holds" if found.mean > found.margin else "does not hold" if found.mean < -found.margin else ""
    return f"{found.mean:+.3f} ± {found.margin:.3f}", word or "not distinguishable"
