"""How far a run is: state, pace, expected end, last evaluation, exchanges by phase, and who was skipped and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from florilegium.apps.runs.pace import Pace, in_words, pace_of
from florilegium.common.errors import RunError
from florilegium.common.pages import Table
from florilegium.strategies.core.telemetry import FILE
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.main_figure import MainFigure, read_main
from florilegium.strategies.folder.metrics_file import read_metrics

FAILURES = "failures.jsonl"
_COLUMNS = {
    "exchanges": ("exchanges", 0), "seconds": ("exchange_seconds", 1), "clients": ("clients_asked", 0),
    "failed": ("clients_failed", 0), "MB down": ("bytes_down", 1), "MB up": ("bytes_up", 1),
}  # fmt: skip
"""Columns of the table of exchanges: the counter of each, and its digits."""


@dataclass(frozen=True)
class Progress:
    """What the files of a run's folder say of its course.

    Attributes:
        status: ``status.json``.
        lines: ``metrics.jsonl``.
        counters: samples of ``metrics.prom`` by name and phase; the phase is "" for gauges.
        failures: ``failures.jsonl``: round, phase, client, reason.
    """

    status: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    counters: Mapping[str, Mapping[str, float]]
    failures: Sequence[Mapping[str, Any]]

    @property
    def main(self) -> MainFigure:
        """The main figure of the run's task."""
        return read_main(self.status)

    @property
    def pace(self) -> Pace | None:
        """How fast the last rounds were; None before two of them have ended."""
        return pace_of(self.lines, int(self.status.get("rounds", 0)))

    def head(self) -> str:
        """Return state, rounds, number of clients and training loss, in words."""
        words = f"{self.status['state']}, round {self.status.get('round', 0)} of {self.status.get('rounds', '?')}"
        if clients := self.counters.get("florilegium_clients", {}).get(""):
            words += f", {clients:.0f} clients"
        loss = self.status.get("loss")
        return words if loss is None else f"{words}, training loss {loss:.4f}"

    def speed(self) -> str:
        """Return the pace in words, with the time when the run will have ended if it is running; "" if unknown."""
        if (pace := self.pace) is None:
            return ""
        speed = f"{pace.clients:.3g} clients a second"
        if self.status["state"] != "running":
            return speed
        end = datetime.now() + timedelta(seconds=pace.left)
        day = "" if end.date() == datetime.now().date() else f"{end:%Y-%m-%d} "
        return f"{speed}, {in_words(pace.left)} left, until about {day}{end:%H:%M}"

    def curve(self, group: str) -> tuple[str, list[tuple[int, float]]]:
        """Return the name of a group's main figure, or the loss where there is none, and its values by round."""
        evaluated = [(line["round"], line[group]) for line in self.lines if line.get(group)]
        name = self.main.shown(evaluated[-1][1]) if evaluated else self.main.name
        return name, [(number, float(figures[name])) for number, figures in evaluated if name in figures]

    def evaluated(self, *names: str) -> Table:
        """Return the figures of these names in the last evaluation: a row for each group of clients."""
        figures = self.status.get("figures") or {}
        rows = [
            [group, *(f"{values[name]:.4f}" if name in values else "" for name in names)]
            for group, values in figures.items()
        ]
        return Table(f"evaluated in round {self.status.get('evaluated')}", ["clients", *names], rows)

    def exchanges(self) -> Table:
        """Return what was exchanged since the run was started or resumed: a row for each phase."""
        rows = []
        for phase in self.counters.get("florilegium_exchanges_total", {}):
            cells = [
                f"{self.counters[f'florilegium_{name}_total'][phase] / (1e6 if 'bytes' in name else 1):.{digits}f}"
                for name, digits in _COLUMNS.values()
            ]
            rows.append([phase, *cells])
        return Table("exchanges", ["phase", *_COLUMNS], rows)


def read_progress(run: Path) -> Progress:
    """Return how far the run in folder ``run`` is.

    Raises:
        RunError: if ``run`` is not the folder of a run that has begun, or a file is damaged.
    """
    try:
        status = read_status(run)
    except (OSError, ValueError) as error:
        raise RunError(f"{run} is not the folder of a run that has begun: {error}") from error
    return Progress(status, read_metrics(run), _samples(run / FILE), read_failures(run))


def _samples(path: Path) -> dict[str, dict[str, float]]:
    found = dict[str, dict[str, float]]()
    for family in text_string_to_metric_families(path.read_text(encoding="utf-8")) if path.exists() else ():
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels.get("phase", "")] = sample.value
    return found


def read_failures(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``failures.jsonl``: round, phase, client, reason; [] if there are none.

    Raises:
        ValueError: if the file is damaged.
    """
    path = run / FAILURES
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        lines.pop()  # half-written, or torn by a power cut
    return [json.loads(line) for line in lines]
