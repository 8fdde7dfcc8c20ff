"""Which clients were skipped in which round, and why: as a map of clients and rounds, and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from florilegium.apps.reports.pictures import MARKERS, colour, plain
from florilegium.common.figures import ShownFigure
from florilegium.common.foreign import printable
from florilegium.common.pages import Table
from florilegium.ui.records import drawable

MOST_MAPPED = 40
"""Clients of the map: those that were skipped most often."""
MOST_LISTED = 1000
_MOST_VECTORS = 2000
"""Marks that are drawn one by one; more are drawn as dots of a picture, which does not grow with them."""
_REASONS = 3
"""Reasons that the table gives for a client, the most frequent ones."""


def failures_table(failures: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each client that was skipped, the most frequent first: how often, when, in what, and why.

    Args:
        failures: the lines of ``failures.jsonl``.
    """
    own: dict[str, list[Mapping[str, Any]]] = {}
    for line in failures:
        own.setdefault(str(line["client"]), []).append(line)
    rows = []
    for client, lines in sorted(own.items(), key=lambda item: -len(item[1]))[:MOST_LISTED]:
        rounds = [int(line["round"]) for line in lines]
        phases = ", ".join(dict.fromkeys(printable(line["phase"], 40) for line in lines))
        reasons = Counter(printable(line["reason"]) for line in lines).most_common(_REASONS)
        why = "; ".join(f"{reason} ({times}×)" if len(lines) > 1 else reason for reason, times in reasons)
        rows.append([printable(client), str(len(lines)), str(min(rounds)), str(max(rounds)), phases, why])
    return Table("", ["client", "times", "first round", "last round", "phases", "why"], rows)


def failures_map(failures: Sequence[Mapping[str, Any]]) -> ShownFigure:
    """Draw a mark for each round in which a client was skipped: a line of the map is a client, a colour a phase.

    Args:
        failures: the lines of ``failures.jsonl``; at least one.
    """
    times = Counter(str(line["client"]) for line in failures)
    shown = [client for client, _ in times.most_common(MOST_MAPPED)]
    place = {client: at for at, client in enumerate(shown)}
    phases = [phase for phase, _ in Counter(str(line["phase"]) for line in failures).most_common(len(MARKERS))]
    figure = ShownFigure(6.4, 1.3 + 0.22 * len(shown))
    axes = figure.subplots()
    for index, phase in enumerate(phases):
        points = [line for line in failures if str(line["phase"]) == phase and str(line["client"]) in place]
        x, y = [int(line["round"]) for line in points], [place[str(line["client"])] for line in points]
        label = drawable(phase) or "phase"
        (marks,) = axes.plot(x, y, MARKERS[index], color=colour(index + 3), markersize=5, label=label, linestyle="none")
        marks.set_rasterized(len(points) > _MOST_VECTORS)
    axes.set_yticks(range(len(shown)), [drawable(client) for client in shown], fontsize="small")
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0.5, max(int(line["round"]) for line in failures) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set(xlabel="round", ylabel="client")
    if len(phases) > 1:
        figure.legend(loc="outside lower center", ncols=len(phases), frameon=False, fontsize="small")
    plain(axes)
    return figure
