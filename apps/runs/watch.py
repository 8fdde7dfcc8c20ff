"""Show the state of a run on one page of the terminal: progress, time per phase, and skipped clients."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from florilegium.common.errors import RunError
from florilegium.strategies.core.telemetry import FILE
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.main_figure import read_main

LAST_FAILURES = 5


def page(run: Path) -> Group:
    """Return one page about a run: state, last evaluation, exchanges by phase, and skipped clients.

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
    parts: list[Any] = [head]
    if error := status.get("error"):
        parts.append(Text(error, style="red"))
    figures = status.get("figures") or {}
    if figures:
        names = (read_main(status).name, "loss")
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
        console.print(page(run))
        return
    with Live(page(run), console=console, auto_refresh=False) as live:
        while _status(run)["state"] == "running":
            time.sleep(every)
            live.update(page(run), refresh=True)


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
