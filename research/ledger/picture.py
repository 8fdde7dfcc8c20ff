"""The ledger's picture: measured against published values, a panel for each paper."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from matplotlib.axes import Axes

from florilegium.apps.reports.pictures import MARKERS, colour, plain
from florilegium.common.figures import ShownFigure
from florilegium.research.ledger.records import Cell, Paper
from florilegium.research.ledger.verdicts import MARGIN, Verdict, verdict

SHOWN: tuple[Verdict, ...] = ("reproduced", "higher", "lower", "not distinguishable", "no interval")
COLUMNS = 3
FEWEST = 5


def draw(papers: Sequence[Paper]) -> ShownFigure:
    """Plot all values in per cent or fractions, in per cent, with their errors and a band of two points.

    A paper with less than ``FEWEST`` such values has no panel.
    """
    papers = [paper for paper in papers if sum(verdict(cell) in SHOWN for cell in _drawn(paper)) >= FEWEST]
    rows = -(-len(papers) // COLUMNS)
    figure = ShownFigure(3.4 * COLUMNS, 3.5 * rows)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, paper in zip(panels, papers, strict=False):
        _panel(axes, paper)
    for axes in panels[len(papers) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SHOWN), frameon=False)
    return figure


def _drawn(paper: Paper) -> list[Cell]:
    return [cell for cell in paper.cells if cell.unit in MARGIN and cell.share is None]


def _panel(axes: Axes, paper: Paper) -> None:
    for index, kind in enumerate(SHOWN):
        cells = [cell for cell in _drawn(paper) if verdict(cell) == kind]
        scales = [2 / float(MARGIN[cell.unit]) for cell in cells]  # to points
        measured = [cell.measured for cell in cells if cell.measured]
        axes.errorbar(
            [s * float(cell.published.value) for s, cell in zip(scales, cells, strict=True)],
            [s * float(found.mean) for s, found in zip(scales, measured, strict=True)],
            xerr=[s * float(cell.error or Decimal()) for s, cell in zip(scales, cells, strict=True)],
            yerr=[s * float(found.error or Decimal()) for s, found in zip(scales, measured, strict=True)],
            fmt=MARKERS[index], markersize=4, linewidth=0.8, linestyle="none", color=colour(index), alpha=0.8,
            label=kind,
        )  # fmt: skip
    low, high = min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color="grey", linewidth=0.8, zorder=0)
    axes.fill_between([low, high], [low - 2, high - 2], [low + 2, high + 2], color="grey", alpha=0.15, zorder=0)
    axes.set(xlim=(low, high), ylim=(low, high), title=paper.published.title, xlabel="published (%)", ylabel="ours (%)")
    axes.set_box_aspect(1)
    plain(axes)
