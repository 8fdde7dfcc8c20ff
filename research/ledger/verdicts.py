"""Compare our values with the published ones: a verdict for each cell, rank correlations for orders of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from scipy.stats import kendalltau, spearmanr

from florilegium.research.ledger.records import Cell, Paper, Unit

Verdict = Literal["reproduced", "higher", "lower", "not run"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "higher", "lower", "not run")
TOLERANCE: dict[Unit, Decimal] = {"%": Decimal(2), "fraction": Decimal("0.02")}
"""Differences up to which a value counts as reproduced, whatever the errors: two points; nothing for other units."""
FEWEST = 3
"""Number of rows from which on an order is compared."""


def difference(cell: Cell) -> Decimal:
    """Return ours minus the published value; the cell must have a value of ours."""
    assert cell.measured
    return cell.measured.mean - cell.published.value


def verdict(cell: Cell) -> Verdict:
    """Return whether a published number is reproduced, or whether ours is higher or lower as a number.

    Reproduced: the values are at most two points apart, or at most as far as the paper's ± and our standard error
    together. An error that is not known counts as zero.
    """
    if cell.measured is None:
        return "not run"
    errors = (cell.published.error or Decimal()) + (cell.measured.error or Decimal())
    if abs(difference(cell)) <= max(TOLERANCE.get(cell.unit, Decimal()), errors):
        return "reproduced"
    return "higher" if difference(cell) > 0 else "lower"


def counts(cells: Sequence[Cell]) -> dict[Verdict, int]:
    """Return how many cells have each verdict."""
    found = [verdict(cell) for cell in cells]
    return {kind: found.count(kind) for kind in VERDICTS}


@dataclass(frozen=True)
class Order:
    """How well our order of a column's rows agrees with the published one.

    Attributes:
        table, column: where the order is.
        n: number of rows that have a value of ours.
        seeds: the seeds that all these rows have, over which they are compared; none: each has its own.
        kendall: Kendall's τ_b, from −1 to 1; nan if all values of a side are equal.
        spearman: Spearman's ρ, likewise.
    """

    table: str
    column: str
    n: int
    seeds: list[int]
    kendall: float
    spearman: float


def orders(paper: Paper) -> list[Order]:
    """Return the rank correlations of all columns of ordered tables with at least ``FEWEST`` values of ours.

    Rows are compared on the same seeds, as far as their values are known by seed.
    """
    result = []
    for table in paper.tables:
        for column in table.printed.columns if table.printed.ordered else []:
            cells = [cell for cell in table.cells if cell.column == column]
            pairs = [(cell.published.value, cell.measured) for cell in cells if cell.measured]
            if len(pairs) >= FEWEST:
                seeds = set.intersection(*(set(measured.runs.seeds) for _, measured in pairs))
                theirs = [float(value) for value, _ in pairs]
                ours = [float(measured.over(seeds)) for _, measured in pairs]
                tau, rho = kendalltau(theirs, ours).statistic, spearmanr(theirs, ours).statistic
                result.append(Order(table.printed.name, column, len(pairs), sorted(seeds), float(tau), float(rho)))
    return result
