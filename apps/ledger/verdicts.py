"""Compare our values with the published ones: a verdict for each cell, rank correlations for orders of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from scipy.stats import kendalltau, spearmanr

from florilegium.apps.ledger.records import Cell, Paper, Unit

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
        kendall: Kendall's τ_b, from −1 to 1; nan if all values of a side are equal.
        spearman: Spearman's ρ, likewise.
    """

    table: str
    column: str
    n: int
    kendall: float
    spearman: float


def orders(paper: Paper) -> list[Order]:
    """Return the rank correlations of all columns of ordered tables with at least ``FEWEST`` values of ours."""
    result = []
    for table in paper.tables:
        for column in table.printed.columns if table.printed.ordered else []:
            pairs = [
                (float(cell.published.value), float(cell.measured.mean))
                for cell in table.cells
                if cell.column == column and cell.measured
            ]
            if len(pairs) >= FEWEST:
                theirs, ours = zip(*pairs, strict=True)
                tau, rho = kendalltau(theirs, ours).statistic, spearmanr(theirs, ours).statistic
                result.append(Order(table.printed.name, column, len(pairs), float(tau), float(rho)))
    return result
