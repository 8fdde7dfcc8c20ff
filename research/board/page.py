"""Write a board: a page in Markdown, a picture, and one self-contained HTML file."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator

from florilegium.apps.reports.html import Lead, write_html
from florilegium.apps.reports.notes import notes
from florilegium.apps.reports.pictures import colour, plain
from florilegium.apps.reports.pools import GROUPS
from florilegium.apps.reports.tables import shown
from florilegium.apps.reports.writing import Report
from florilegium.apps.runs.experiment import recipe_name
from florilegium.apps.tuning.report import about, choices
from florilegium.common.figures import ShownFigure
from florilegium.common.pages import Table, write_page, write_picture
from florilegium.research.board.carry_out import TABLE, Board
from florilegium.research.board.entries import LEVEL, TARGET, Entry, entries, text_of
from florilegium.research.board.made import made, options_of
from florilegium.research.board.published import published
from florilegium.strategies.folder.main_figure import MainFigure

BEST = "best on test"
MEANING = (
    "Figures are means over clients, then over seeds; ± is the standard error over seeds. *last*: after the last "
    "round. *by validation*: in the evaluation with the best figure on held-back training examples of seen clients. "
    "*best on test*: the best of all evaluations on test examples, as many published tables have it; nobody can choose "
    "it without the test labels. *worst decile*: the worst tenth of the clients. *rank*: by the last figure; methods "
    "share ranks unless the paired t-test over seeds tells them apart, with p below "
    f"{LEVEL:.0%} after Holm's adjustment for all pairs; with three seeds it rarely does. A method without some of the "
    f"seeds has none. *MB*, *s*: sent both ways for all clients, and spent in training rounds, until {TARGET:.0%} of "
    "the final one was reached. *peak MB*: memory of all processes together."
)
_GROUP_WORDS = {
    "seen": "Clients that train", "unlabeled": "Clients without labels", "unseen": "Clients that were never seen"
}  # fmt: skip


def write_board(board: Board, target: Path) -> Report:
    """Write ``<recipe>.md``, ``.png`` and ``.html`` to folder ``target``; return what they say."""
    name, sources = recipe_name(board.recipe), published(board.recipe)
    groups = {group: found for group in GROUPS if (found := entries(board.section, group))}
    tables = [_table(found, sources if group == "seen" else {}, _GROUP_WORDS[group]) for group, found in groups.items()]
    picture, tuned = draw(groups), replace(choices(board.tuning), title="Tuning")
    failed = [f"{who} failed: {why}" for who, why in board.failed.items()]
    varied = {key for result in board.tuning.results for key in result.subject.ranges}
    remarks = [*failed, *notes(board.section, varied)]
    write_picture(picture, target / f"{name}.png")
    first = (f"# Board: {name}", f"{board.section.title()}. {_made(board)}", f"![{name}]({name}.png)")
    last = ("## Notes", "\n".join(f"- {remark}" for remark in remarks)) if remarks else ()
    chosen = (f"## {tuned.title}", _tuning(board), replace(tuned, title=""))
    write_page(target / f"{name}.md", *first, *tables, MEANING, *chosen, *last)
    leads = [Lead(tables[0], picture, MEANING), *map(Lead, tables[1:]), Lead(tuned, words=_tuning(board))]
    write_html([board.section], failed, target / f"{name}.html", f"Board: {name}", leads, varied, compared=False)
    return Report(tables, remarks)


def _made(board: Board) -> str:
    """Return in words which command and version made the board's runs, when, where, and how to make a line of it."""
    options = options_of(board.seeds, board.overrides)
    single = shlex.join(["florilegium", "compare", "METHOD", "--recipe", board.recipe, "--tuned", TABLE, *options])
    return f"{made([run.path for run in board.section.runs], board.recipe, options)} A single line: `{single}`."


def _tuning(board: Board) -> str:
    """Return in words how the methods were tuned, and whose chosen values lie at the edge of their ranges."""
    edges: dict[str, list[str]] = {}
    for result in board.tuning.results:
        for key in result.at_edge():
            edges.setdefault(key, []).append(result.subject.name)
    told = "; ".join(f"{key} of {', '.join(names)}" for key, names in edges.items())
    return about(board.tuning) + (f" At the edge of its range: {told}." if told else "")


def _table(found: Sequence[Entry], sources: dict[str, dict[str, str]], title: str) -> Table:
    unit = " (%)" if not found or found[0].main.percent else ""
    head = ["method", "rank", *(f"{name}{unit}" for name in ("last", "by validation", BEST, "worst decile"))]
    head += ["MB", "s", "peak MB", *sources]
    rows = [
        [
            entry.label, text_of(entry.rank),
            *(shown(value, entry.main.name, entry.main) for value in entry.estimates),
            *(_number(value) for value in (entry.megabytes, entry.seconds, entry.memory)),
            *(table.get(entry.label, "") for table in sources.values()),
        ]
        for entry in found
    ]  # fmt: skip
    return Table(title, head, rows, {f"{BEST}{unit}", *sources})


def _number(value: float) -> str:
    """Return a number with three significant digits; "" if it is unknown."""
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw(groups: dict[str, list[Entry]]) -> ShownFigure:
    """Plot the main figure of each method and group of clients, and MB until it is nearly reached; the best first."""
    labels = list(dict.fromkeys(entry.label for found in groups.values() for entry in found))
    figure = ShownFigure(9.5, 1.6 + 0.23 * len(labels))
    main = next((entry.main for found in groups.values() for entry in found), MainFigure())
    factor = 100 if main.percent else 1
    final, effort = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    for index, (group, found) in enumerate(groups.items()):
        places = np.array([labels.index(entry.label) for entry in found]) + 0.18 * index
        means = [factor * entry.last.mean for entry in found]
        errors = [0.0 if math.isnan(entry.last.error) else factor * entry.last.error for entry in found]
        final.errorbar(
            means, places, xerr=errors, fmt="osD"[index], markersize=5, capsize=2, color=colour(index),
            label=_GROUP_WORDS[group], linestyle="none",
        )  # fmt: skip
        if index == 0:
            sent = [entry.megabytes or np.nan for entry in found]
            effort.plot(sent, places, "o", color=colour(index), markersize=5)
    final.set_yticks(range(len(labels)), labels, fontsize="small")
    final.set_ylim(len(labels) - 0.3, -0.7)
    final.set_xlabel(f"{main.name} after the last round" + (" (%)" if main.percent else ""))
    effort.set_xlabel(f"MB until {TARGET:.0%} of it")
    effort.set_xscale("log")
    low, high = effort.get_xlim()
    effort.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=6))
    effort.xaxis.set_major_formatter("{x:g}")
    effort.minorticks_off()
    for axes in (final, effort):
        plain(axes)
    if len(groups) > 1:
        figure.legend(loc="outside lower center", ncols=len(groups), frameon=False, fontsize="small")
    return figure
