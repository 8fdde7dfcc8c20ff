"""The page of a description: problems, columns, and what each client's columns hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from florilegium.common.layout import Html, page_html, table_html
from florilegium.common.pages import Table
from florilegium.strategies.statistics.description import QUANTILES

_OF_SOME = (
    "Where a column is known in some clients, its mean and deviation are theirs. The others lack it, or hide their "
    "figures, from which a small count would follow: their values need not be missing."
)
_OWN = (
    "Of numbers the mean ± the standard deviation, of categories the most frequent one and its share of the shown "
    "values. – is hidden, or not known."
)


def page(found: Mapping[str, Any], dataset: str) -> str:
    """Return the description as an HTML page: problems, a row and a picture for each column, then clients."""
    hidden = found["min_count"] > 1
    rows = f", {found['rows']} training rows" if "rows" in found else ""
    told = [
        f"{found['clients']} clients{rows}.",
        f"Counts below {found['min_count']} are hidden (–, grey bars). So are others, from which these would follow."
        if hidden else "",
        "What one client hides is hidden in the total." if hidden and "by_client" in found else "",
    ]  # fmt: skip
    problems = "".join(f"<li>{escape(line)}</li>" for line in found["problems"])
    parts = [
        "<h2>Problems</h2>", f"<ul>{problems}</ul>" if problems else _said("None was found."),
        "<h2>Columns</h2>", *_columns(found["columns"], found["clients"]),
    ]  # fmt: skip
    if "shared_rows" in found:
        shared = found["shared_rows"]
        about = f" ± {shared['error']:.1f}" if shared["error"] > 0.05 else ""
        parts.append(_said(f"Equal rows of two clients: {_number(shared['pairs'])}{about}."))
    if "correlations" in found and found["correlations"]["names"]:
        names = found["correlations"]["names"]
        lines = [[n, *map(_number, row)] for n, row in zip(names, found["correlations"]["matrix"], strict=True)]
        parts += ["<h2>Correlations</h2>", table_html(Table("", ["column", *names], lines), "Correlations")]
    if "by_client" in found:
        parts += _clients(found["by_client"], found["columns"])
    return page_html(dataset, " ".join(filter(None, told)), *parts)


def _said(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _clients(by_client: Mapping[str, Any], columns: Mapping[str, Any]) -> list[str]:
    """Return the tables with a row for each client: its means, and how far it is from the others."""
    head = ["client", *columns]
    own = [[c, *(_own(one[n], columns[n]) for n in columns)] for c, one in by_client.items()]
    far = [[c, *(_number(one[n]["divergence"]) for n in columns)] for c, one in by_client.items()]
    return [
        "<h2>Each client's columns</h2>", table_html(Table("", head, own), "Each client's columns"), _said(_OWN),
        "<h2>How far each client is from the others</h2>", table_html(Table("", head, far), "Distances"),
        _said("Divergence of Jensen and Shannon: 0 alike, 1 disjoint."),
    ]  # fmt: skip


def _own(one: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return what a client's column holds, in a few words."""
    if one.get("lacking"):
        return "lacking"
    if facts["kind"] == "numbers":
        return f"{_number(one['mean'])} ± {_number(one['deviation'])}" if "mean" in one else "–"
    shown = {w: count for w, count in zip(facts["counts"], one["counts"], strict=True) if count}
    if not shown:
        return "–"
    most = max(shown, key=lambda w: shown[w])
    return f"{most} {shown[most] / sum(shown.values()):.0%}"


def _columns(columns: Mapping[str, Any], clients: int) -> list[str]:
    ends = ("min", "max") if any("min" in facts for facts in columns.values()) else ()
    head = ["column", "known", "missing", "mean", "deviation", *ends, *(f"{q:.0%}" for q in QUANTILES), "distribution"]
    rows, some = [], False
    for name, facts in columns.items():
        points = facts.get("quantiles") or {}
        numbers = [_number(facts[word]) if word in facts else "" for word in ("missing", "mean", "deviation", *ends)]
        known = "" if "known" not in facts else "–" if facts["known"] is None else str(facts["known"])
        if (of := facts.get("known_of", clients)) < clients:
            known, some = f"{known} in {of} of {clients} clients", True
        parts = [_number(points.get(f"{q:g}")) if "quantiles" in facts else "" for q in QUANTILES]
        rows.append([name, known, *numbers, *parts, _bars(name, facts["counts"], facts.get("edges", ()))])
    return [table_html(Table("", head, rows), "Columns", "many"), *([_said(_OF_SOME)] if some else [])]


def _number(x: float | None) -> str:
    return "–" if x is None else f"{x:.0f}" if 1e4 <= abs(x) < 1e9 else f"{x:.4g}"


def _bars(column: str, counts: Mapping[str, float | None] | Sequence[float | None], edges: Sequence[float]) -> Html:
    """Return a picture of counts; a reader sees what a bar stands for by pointing at it. Grey ones are hidden."""
    if isinstance(counts, Mapping):
        pairs = [*counts.items()]
    else:
        ends = [f"{edge:.4g}" for edge in edges]
        within = [f"{low} to {high}" for low, high in pairwise(ends)]
        pairs = [*zip([f"below {ends[0]}", *within, f"{ends[-1]} or more"], counts, strict=True)]
    most = max((count or 0.0 for _, count in pairs), default=0) or 1
    bars = ""
    for i, (name, count) in enumerate(pairs):
        high = 30.0 if count is None else max(30 * count / most, 0.0)
        told, look = ("hidden", "var(--line)") if count is None else (f"{count:g}", "var(--accent)")
        bars += (
            f"<rect x='{8 * i}' y='{30 - high:.1f}' width='7' height='{high:.1f}' fill='{look}'>"
            f"<title>{escape(str(name))}: {told}</title></rect>"
        )
    label = escape(f"counts of {column}")
    return Html(f"<svg width='{8 * len(pairs)}' height='30' role='img' aria-label='{label}'>{bars}</svg>")
