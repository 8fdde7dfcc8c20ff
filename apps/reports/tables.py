"""A report's tables: final figures of each method, and paired differences between methods."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from florilegium.apps.reports.pairs import Pair
from florilegium.apps.reports.pools import Section, span
from florilegium.apps.reports.statistics import CONFIDENCE, Estimate
from florilegium.common.pages import Table
from florilegium.strategies.folder.main_figure import MainFigure

MEANING = (
    "Figures are means over clients, then over seeds; ± is the standard error over seeds. *global*: the model as "
    "received, before it is personalised; *weighted* or *pooled*: of all test examples together; *std*: standard "
    "deviation over the clients of a seed; *worst decile*: mean of the worst tenth of the clients."
)
PAIRS_MEANING = (
    f"Each client is compared with itself; both intervals are Student's t for paired samples, {100 * CONFIDENCE:g} %. "
    "*Over clients*: for other clients, with these seeds. *Over seeds*: for another seed, which draws cohorts, initial "
    "models and, unless the data name them, clients anew. p: the hypothesis of no difference over seeds, adjusted by "
    "Holm's procedure for all rows of the table."
)


def scale(figure: str, main: MainFigure) -> tuple[float, int]:
    """Return the factor by which tables show a figure, and the digits: 100 and 1 for shares, 1 and 3 for others."""
    return (100.0, 1) if main.is_percent(figure) else (1.0, 3)


def shown(value: Estimate | None, figure: str, main: MainFigure = MainFigure()) -> str:  # noqa: B008  (a constant)
    """Return a figure with its standard error, such as "93.1 ± 0.4"; "" for None, without ± for a single seed."""
    if value is None:
        return ""
    if math.isnan(value.mean):
        return "nan"
    factor, digits = scale(figure, main)
    error = "" if math.isnan(value.error) else f" ± {factor * value.error:.{digits}f}"
    return f"{factor * value.mean:.{digits}f}{error}"


def figures_table(section: Section, title: str = "") -> Table:
    """Return the final figures of a section: a row per method and group of clients."""
    places = [(pool, group) for pool in section.pools for group in pool.groups() or [""]]
    main = section.pools[0].main
    columns = [name for name in main.columns if any(pool.figure(group, name) for pool, group in places)]
    head = ["method", "clients", "seeds", "rounds", *(heading(name, main) for name in columns)]
    rows = []
    for pool, group in places:
        cells = [shown(pool.figure(group, name), name, main) for name in columns]
        summaries = [run.summary for run in pool.runs]
        traffic = [f"{np.mean([s[way] for s in summaries]) / 1e6:.1f}" for way in ("bytes_down", "bytes_up")]
        seconds = f"{np.mean([s['seconds_per_round'] for s in summaries]):.2f}"
        rounds = span(s["rounds"] for s in summaries)
        clients = span(run.clients_of(group) for run in pool.runs)
        place = group + (f" ({clients})" if clients != "0" else "")
        rows.append([pool.label, place, str(len(pool.runs)), rounds, *cells, *traffic, seconds])
    return Table(title, [*head, "MB down", "MB up", "s/round"], rows)


def heading(figure: str, main: MainFigure) -> str:
    """Return the heading of a figure's column."""
    unit = " (%)" if main.percent and figure.startswith(main.name) else ""
    ending = figure.removeprefix(f"{main.name}_") if figure.startswith(main.name) else figure
    return ending.replace("_", " ") + unit


def pairs_table(found: Sequence[Pair], title: str = "") -> Table:
    """Return paired differences, shares in percentage points."""
    head = ["difference", "of", "clients", "seeds", "mean", "interval over clients", "interval over seeds", "p"]
    return Table(title, head, [_pair(pair) for pair in found])


def _pair(pair: Pair) -> list[str]:
    over = pair.difference
    factor, digits = scale(pair.figure, pair.main)
    intervals = [interval(estimate, factor, digits) for estimate in (over.over_clients, over.over_seeds)]
    mean = f"{factor * over.over_seeds.mean:+.{digits}f}"
    return [
        f"{pair.second} − {pair.first}", pair.figure, f"{pair.group} ({over.over_clients.n})",
        str(len(pair.seeds)), mean.replace("+nan", "nan"), *intervals, p_value(pair.p),
    ]  # fmt: skip


def interval(value: Estimate, factor: float, digits: int) -> str:
    """Return a confidence interval, such as "+0.3 to +2.1"; "" if it is unknown."""
    if math.isnan(value.margin):
        return ""
    low, high = (factor * (value.mean + side * value.margin) for side in (-1, 1))
    return f"{low:+.{digits}f} to {high:+.{digits}f}"


def p_value(p: float) -> str:
    """Return a p-value with two significant digits; "" if it is unknown."""
    if math.isnan(p):
        return ""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"
