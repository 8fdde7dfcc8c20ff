"""Compare our values with the published ones: a verdict for each cell, rank correlations for orders of methods.

A number is reproduced if the interval of its difference, ours − published, lies within a margin that was fixed before:
so few or scattered seeds reproduce nothing. Otherwise it is higher or lower if the interval excludes 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from scipy.stats import kendalltau, spearmanr

from florilegium.apps.reports.statistics import Estimate
from florilegium.research.ledger.records import Cell, Paper, Unit

Verdict = Literal["reproduced", "higher", "lower", "not distinguishable", "no interval", "not run"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "higher", "lower", "not distinguishable", "no interval", "not run")
MARGIN: dict[Unit, Decimal] = {"%": Decimal(2), "fraction": Decimal("0.02")}
"""Differences that count as none: two points. Numbers of other units have a share of what is published."""
SHARE = Decimal("0.1")
"""Share of a published number of another unit that counts as no difference."""
FEWEST = 3
"""Number of rows from which on an order is compared."""


def margin_of(cell: Cell) -> Decimal:
    """Return the largest difference that counts as none: the table's share of the published value, or the unit's."""
    if cell.share is None and cell.unit in MARGIN:
        return MARGIN[cell.unit]
    return (SHARE if cell.share is None else cell.share) * abs(cell.published.value)


def difference(cell: Cell) -> Estimate:
    """Return ours minus the published value, with the standard error of both together; the cell must have ours.

    Errors of the two means add up as variances, with Welch and Satterthwaite's degrees of freedom. A paper that prints
    no error is taken at its word, so that the interval is that of our seeds. The error is NaN where ours is not known,
    and 0 between runs with the same draws.
    """
    assert cell.measured
    mean, n = float(cell.measured.mean - cell.published.value), len(cell.measured.values)
    if cell.measured.runs.same_draws:
        return Estimate(mean, 0.0, n, math.inf)
    if cell.measured.error is None:
        return Estimate(mean, math.nan, n, 0)
    ours, theirs = float(cell.measured.error), float(cell.error or 0)
    total = ours**2 + theirs**2
    if not total:
        return Estimate(mean, 0.0, n, n - 1)
    parts = ours**4 / (n - 1) + (theirs**4 / (cell.runs - 1) if theirs else 0.0)
    return Estimate(mean, math.sqrt(total), n, total**2 / parts)


def verdict(cell: Cell) -> Verdict:
    """Return whether a published number is reproduced, or whether ours is higher or lower as a number.

    "no interval": ours is of one seed, or the mean alone is known. "not distinguishable": the 95 % interval of the
    difference has 0 in it and reaches beyond the margin.
    """
    if cell.measured is None:
        return "not run"
    found = difference(cell)
    if math.isnan(found.margin):
        return "no interval"
    low, high = found.mean - found.margin, found.mean + found.margin
    if max(-low, high) <= float(margin_of(cell)) * (1 + 1e-9):  # 0.02 is no binary fraction
        return "reproduced"
    if low <= 0 <= high:
        return "not distinguishable"
    return "higher" if low > 0 else "lower"


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
        p: two-sided p-value of no association, exact without ties: the share of the n! orders with a τ as large.
    """

    table: str
    column: str
    n: int
    seeds: list[int]
    kendall: float
    spearman: float
    p: float


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
                tau, rho = kendalltau(theirs, ours), spearmanr(theirs, ours).statistic
                result.append(
                    Order(
                        table.printed.name, column, len(pairs), sorted(seeds), float(tau.statistic), float(rho),
                        float(tau.pvalue),
                    )
                )  # fmt: skip
    return result
