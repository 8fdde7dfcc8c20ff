"""A report's tables in Markdown: final figures of each method, and paired differences between methods."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from florilegium.apps.reports.pools import Pair, Section
from florilegium.apps.reports.statistics import CONFIDENCE, Estimate

FIGURES = ("accuracy", "accuracy_global", "accuracy_weighted", "std", "worst_decile", "loss")
WORDS = {"accuracy": "accuracy (%)", "accuracy_global": "global (%)", "accuracy_weighted": "weighted (%)"}
MEANING = (
    "Figures are means over clients, then over seeds; ± is the standard error over seeds. *global*: the model as "
    "received, before it is personalised; *weighted*: by test examples; *std*: standard deviation over the clients of "
    "a seed; *worst decile*: mean of the worst tenth of the clients."
)
PAIRS_MEANING = (
    f"Each client is compared with itself; both intervals are Student's t for paired samples, {100 * CONFIDENCE:g} %. "
    "*Over clients*: for other clients, with these seeds. *Over seeds*: for another seed, which draws other clients, "
    "cohorts and initial models. p: the hypothesis of no difference over seeds, adjusted by Holm's procedure for all "
    "rows of the table."
)


def scale(figure: str) -> float:
    """Return the factor by which tables show a figure: 100 for accuracies, 1 for losses."""
    return 1.0 if "loss" in figure else 100.0


def shown(value: Estimate | None, figure: str) -> str:
    """Return a figure with its standard error, such as "93.1 ± 0.4"; "" for None, without ± for a single seed."""
    if value is None:
        return ""
    digits, factor = (3 if "loss" in figure else 1), scale(figure)
    error = "" if math.isnan(value.error) else f" ± {factor * value.error:.{digits}f}"
    return f"{factor * value.mean:.{digits}f}{error}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


Rows = tuple[list[str], list[list[str]]]
"""The head of a table, and its rows."""


def figures_table(section: Section) -> str:
    """Return the final figures of a section as a Markdown table: a line per method and group of clients."""
    return markdown(*figures_rows(section))


def figures_rows(section: Section) -> Rows:
    """Return head and rows of :func:`figures_table`."""
    places = [(pool, group) for pool in section.pools for group in pool.groups()]
    columns = [name for name in FIGURES if any(pool.figure(group, name) for pool, group in places)]
    head = ["method", "clients", "seeds", "rounds", *(WORDS.get(name, name.replace("_", " ")) for name in columns)]
    rows = []
    for pool, group in places:
        cells = [shown(pool.figure(group, name), name) for name in columns]
        summaries = [run.summary for run in pool.runs]
        traffic = [f"{np.mean([s[way] for s in summaries]) / 1e6:.1f}" for way in ("bytes_down", "bytes_up")]
        seconds = f"{np.mean([s['seconds_per_round'] for s in summaries]):.2f}"
        rounds = [s["rounds"] for s in summaries]
        span = str(rounds[0]) if len(set(rounds)) == 1 else f"{min(rounds)}-{max(rounds)}"
        rows.append([pool.label, group, str(len(pool.runs)), span, *cells, *traffic, seconds])
    return [*head, "MB down", "MB up", "s/round"], rows


def pairs_table(found: Sequence[Pair]) -> str:
    """Return paired differences as a Markdown table, accuracies in percentage points; "" if there are none."""
    return markdown(*pairs_rows(found)) if found else ""


def pairs_rows(found: Sequence[Pair]) -> Rows:
    """Return head and rows of :func:`pairs_table`."""
    head = ["difference", "of", "clients", "seeds", "mean", "interval over clients", "interval over seeds", "p"]
    return head, [_pair(pair) for pair in found]


def _pair(pair: Pair) -> list[str]:
    over = pair.difference
    digits, factor = (3 if "loss" in pair.figure else 1), scale(pair.figure)
    intervals = [interval(estimate, factor, digits) for estimate in (over.over_clients, over.over_seeds)]
    return [
        f"{pair.second} − {pair.first}", pair.figure, f"{pair.group} ({over.over_clients.n})",
        str(len(pair.seeds)), f"{factor * over.over_seeds.mean:+.{digits}f}", *intervals, p_value(pair.p),
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
