"""Show the state of a run on one page of the terminal: progress, time per phase, and skipped clients."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from florilegium.apps.runs.pace import Pace, curve, in_words, pace_of
from florilegium.common.errors import RunError
from florilegium.strategies.core.telemetry import FILE
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.main_figure import MainFigure, read_main
from florilegium.strategies.folder.metrics_file import read_metrics

LAST_FAILURES = 5
WIDEST = 72
"""Characters of the curve on a wide terminal."""


def page(run: Path, width: int = 80) -> Group:
    """Return one page about a run: state, pace, curve, last evaluation, exchanges by phase, and skipped clients.

    Args:
        run: the run's folder.
        width: characters of a line.

    Raises:
        RunError: if ``run`` is not the folder of a run that has begun.
    """
    status = _status(run)
    rows = _samples(run)
    head = Text(f"{run.name}: {status['state']}, round {status.get('round', 0)} of {status.get('rounds', '?')}")
    if clients := rows.get("florilegium_clients", {}).get(""):
        head.append(f", {clients:.0f} clients")
    if status.get("loss") is not None:
        head.append(f", training loss {status['loss']:.4f}")
    lines = read_metrics(run)
    pace = pace_of(lines, int(status.get("rounds", 0)))
    parts: list[Any] = [head, *([] if pace is None else [Text(_speed(status, pace))])]
    if error := status.get("error"):
        parts.append(Text(error, style="red"))
    figures = status.get("figures") or {}
    if figures:
        names = (read_main(status).name, "loss")
        parts += [Text(line) for line in _curve(lines, next(iter(figures)), read_main(status), width)]
        shown = Table("clients", *names, title=f"evaluated in round {status.get('evaluated')}")
        for group, values in figures.items():
            shown.add_row(group, *(f"{values[name]:.4f}" if name in values else "" for name in names))
        parts.append(shown)
    phases = rows.get("florilegium_exchanges_total", {})
    if phases:
        columns = {
            "exchanges": "exchanges", "seconds": "exchange_seconds", "clients": "clients_asked",
            "failed": "clients_failed", "MB down": "bytes_down", "MB up": "bytes_up",
        }  # fmt: skip
        exchanges = Table("phase", *columns, title="exchanges")
        for phase in phases:
            cells = [rows[f"florilegium_{name}_total"][phase] for name in columns.values()]
            exchanges.add_row(
                phase, f"{cells[0]:.0f}", f"{cells[1]:.1f}", f"{cells[2]:.0f}", f"{cells[3]:.0f}",
                f"{cells[4] / 1e6:.1f}", f"{cells[5] / 1e6:.1f}",
            )  # fmt: skip
        parts.append(exchanges)
    if failures := _failures(run):
        who = Column("client", overflow="fold")  # a client's name may be long, and is not cut
        missing = Table("round", "phase", who, "why", title=f"skipped clients: {len(failures)}")
        for line in failures[-LAST_FAILURES:]:
            missing.add_row(str(line["round"]), line["phase"], Text(line["client"]), Text(line["reason"]))
        parts.append(missing)
        most = ", ".join(
            f"{c} ({n})" for c, n in Counter(line["client"] for line in failures).most_common(LAST_FAILURES)
        )
        parts.append(Text(f"most often: {most}"))
    return Group(*parts)


def watch(run: Path, console: Console, every: float) -> None:
    """Show the page and refresh it every ``every`` seconds until the run ends; once if 0 or not on a terminal."""
    if not console.is_terminal or not every:
        console.print(page(run, console.width))
        return
    with Live(page(run, console.width), console=console, auto_refresh=False) as live:
        while _status(run)["state"] == "running":
            time.sleep(every)
            live.update(page(run, console.width), refresh=True)


def _speed(status: Mapping[str, Any], pace: Pace) -> str:
    """Return the pace of a run in words, with the time when it will have ended if it is running."""
    speed = f"{pace.clients:.3g} clients a second"
    if status["state"] != "running":
        return speed
    end = datetime.now() + timedelta(seconds=pace.left)
    day = "" if end.date() == datetime.now().date() else f"{end:%Y-%m-%d} "
    return f"{speed}, {in_words(pace.left)} left, until about {day}{end:%H:%M}"


def _curve(lines: Sequence[Mapping[str, Any]], group: str, main: MainFigure, width: int) -> list[str]:
    """Return the curve of the main figure, or the loss where there is none, over the evaluated rounds; from two on."""
    evaluated = [(line["round"], line[group]) for line in lines if line.get(group)]
    name = main.shown(evaluated[-1][1]) if evaluated else main.name
    points = [(number, float(figures[name])) for number, figures in evaluated if name in figures]
    return [f"{name} of the {group} clients, by round", *curve(points, min(width, WIDEST))] if len(points) > 1 else []


def _status(run: Path) -> dict[str, Any]:
    try:
        return read_status(run)
    except (OSError, ValueError) as error:
        raise RunError(f"{run} is not the folder of a run that has begun: {error}") from error


def _samples(run: Path) -> dict[str, dict[str, float]]:
    """Return the samples of ``metrics.prom`` by name and phase; the phase is "" for gauges."""
    path, found = run / FILE, dict[str, dict[str, float]]()
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")) if path.exists() else ():
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("phase", "")] = sample.value
    return found


def _failures(run: Path) -> list[dict[str, Any]]:
    path = run / "failures.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
