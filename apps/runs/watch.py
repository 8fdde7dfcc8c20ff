"""Show the state of a run on one page of the terminal: progress, time per phase, and skipped clients."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from florilegium.apps.runs.pace import curve
from florilegium.apps.runs.progress import Progress, read_progress
from florilegium.common import pages

LAST_FAILURES = 5
WIDEST = 72
"""Characters of the curve on a wide terminal."""


def page(run: str, found: Progress, width: int = 80) -> Group:
    """Return one page about a run: state, pace, curve, last evaluation, exchanges by phase, and skipped clients.

    Args:
        run: the run's id.
        found: how far it is.
        width: characters of a line.
    """
    parts: list[Any] = [Text(f"{run}: {found.head()}"), *([Text(speed)] if (speed := found.speed()) else [])]
    if error := found.status.get("error"):
        parts.append(Text(error, style="red"))
    if groups := [*(found.status.get("figures") or {})]:
        name, points = found.curve(groups[0])
        if len(points) > 1:
            lines = curve(points, min(width, WIDEST))
            parts += map(Text, [f"{name} of the {groups[0]} clients, by round", *lines])
        parts.append(_shown(found.evaluated(found.main.name, "loss")))
    if (exchanges := found.exchanges()).rows:
        parts.append(_shown(exchanges))
    if failures := found.failures:
        who = Column("client", overflow="fold")  # a client's name may be long, and is not cut
        missing = Table("round", "phase", who, "why", title=f"skipped clients: {len(failures)}")
        for line in failures[-LAST_FAILURES:]:
            missing.add_row(str(line["round"]), line["phase"], Text(line["client"]), Text(line["reason"]))
        parts.append(missing)
        often = Counter(line["client"] for line in failures).most_common(LAST_FAILURES)
        most = ", ".join(f"{client} ({times})" for client, times in often)
        parts.append(Text(f"most often: {most}"))
    return Group(*parts)


def watch(run: Path, console: Console, every: float) -> None:
    """Show the page and refresh it every ``every`` seconds until the run ends; once if 0 or not on a terminal.

    Raises:
        RunError: if ``run`` is not the folder of a run that has begun.
    """
    found = read_progress(run)
    if not console.is_terminal or not every:
        console.print(page(run.name, found, console.width))
        return
    with Live(page(run.name, found, console.width), console=console, auto_refresh=False) as live:
        while found.status["state"] == "running":
            time.sleep(every)
            found = read_progress(run)
            live.update(page(run.name, found, console.width), refresh=True)


def _shown(table: pages.Table) -> Table:
    shown = Table(*table.head, title=table.title)
    for row in table.rows:
        shown.add_row(*row)
    return shown
