"""What papers claim of attacks and defences, as orders of two cells of a board, and whether they hold in its runs.

Orders alone are entered, not the papers' numbers, whose settings are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from florilegium.apps.reports.verdicts import verdict


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


def named(claim: Claim) -> list[str]:
    """Return a claim in words: its paper, and the two cells."""
    return [claim.paper, str(claim.better), str(claim.worse)]


def verdicts(values: Callable[[Point], Mapping[int, float] | None]) -> list[list[str]]:
    """Return a row, as in :data:`florilegium.apps.reports.verdicts.HEAD`, for each claim that a board can test.

    Args:
        values: returns the figure of each completed run of a cell, by seed; None if the board has no such cell.
    """
    rows = []
    for claim in CLAIMS:
        better, worse = values(claim.better), values(claim.worse)
        if better is None or worse is None:
            continue
        rows.append([*named(claim), *verdict(better, worse)])
    return rows
