"""What pages show of one run, read from its files without importing its method; no file is trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from florilegium.apps.reports.pools import GROUPS, Pool
from florilegium.apps.reports.run_records import RunRecord
from florilegium.apps.reports.tables import heading, scale
from florilegium.apps.settings.configuration import defaults
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable
from florilegium.common.pages import Table
from florilegium.common.settings import Value
from florilegium.strategies.folder.attempts import STATUS
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.main_figure import read_main
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.results import WORDS, read_clients, read_summary
from florilegium.strategies.folder.run_folder import read_config

DECILES = tuple(range(10, 100, 10))
"""Percentiles of the clients' figures."""
MOST_CLIENTS = 1000
"""Clients that a table lists."""
_LONGEST = 60
"""Letters of a name in pictures."""


def drawable(text: object) -> str:
    """Return a text of a run's files for a picture: short, and without what matplotlib reads as a formula."""
    return printable(text, _LONGEST).replace("\\", "/").replace("$", r"\$").lstrip("_")


def record_of(run: Path, *, metrics: bool = False, clients: bool = False) -> RunRecord:
    """Return results so far of the run in folder ``run``; of a run that goes on, the last evaluation is "final".

    Args:
        run: the run's folder.
        metrics: whether ``metrics.jsonl`` is read.
        clients: whether ``clients.csv`` is read.

    Raises:
        ConfigurationError, RunError: if a file is missing or damaged.
    """
    summary = read_summary(run)
    if not summary and (run / STATUS).exists():
        status = read_status(run)
        summary = {"final": status.get("figures") or {}, **({"task": status["task"]} if "task" in status else {})}
    for name in read_main(summary).columns:
        if drawable(name) != name:
            raise RunError(f"the name of a figure, '{printable(name, _LONGEST)}', is no plain word")
    lines, rows = read_metrics(run) if metrics else [], read_clients(run) if clients else []
    return RunRecord(run, read_config(run), {"final": {}, **summary}, lines, rows)


def pool_of(record: RunRecord) -> Pool:
    """Return a run as a pool of its own, under the name of its method."""
    return Pool(drawable(record.config.get("method", "run")) or "run", (record,))


def changed_settings(config: Mapping[str, Value]) -> Table:
    """Return the keys of a run's configuration that differ from the defaults, or have none."""
    usual = defaults()
    changed = {key: value for key, value in config.items() if key not in usual or value != usual[key]}
    rows = [[printable(key), printable(value), str(usual.get(key, ""))] for key, value in changed.items()]
    return Table("", ["key", "value", "default"], rows)


def spread(record: RunRecord) -> Table:
    """Return mean and deciles of the clients' final main figures: a row for each group of clients."""
    main = read_main(record.summary)
    factor, digits = scale(main.name, main)
    own = record.figures(main.name)
    rows = []
    for group in GROUPS:
        values = factor * np.array([value for (where, _), value in own.items() if where == group])
        values = values[~np.isnan(values)]
        if len(values):
            numbers = [values.mean(), values.std(), values.min(), *np.percentile(values, DECILES), values.max()]
            rows.append([group, str(len(values)), *(f"{number:.{digits}f}" for number in numbers)])
    head = ["clients", "number", "mean", "std", "smallest", *(f"{ten} %" for ten in DECILES), "largest"]
    return Table(heading(main.name, main) or main.name, head, rows)


def clients_table(record: RunRecord) -> Table:
    """Return the last evaluation of each client, those with the worst main figure first, at most ``MOST_CLIENTS``."""
    main, lines = read_main(record.summary), record.clients
    if not lines:
        return Table("", ["client"], [])
    sign = 1 if main.higher else -1

    def order(line: Mapping[str, str]) -> tuple[bool, float]:
        value = float(line.get(main.name) or "nan")
        return np.isnan(value), sign * value

    names = [name for name in lines[0] if name != "name" or any(line["name"] for line in lines)]
    rows = [[_cell(name, line[name]) for name in names] for line in sorted(lines, key=order)[:MOST_CLIENTS]]
    return Table("", [name.replace("_", " ") for name in names], rows)


def _cell(name: str, text: str) -> str:
    if name in WORDS or not text:
        return printable(text)
    number = float(text)
    return f"{number:g}" if number == int(number if np.isfinite(number) else 0) else f"{number:.4f}"


def left_out(summary: Mapping[str, Any]) -> Table:
    """Return who could not take part, or was refused, as ``summary.json`` lists them: who, and why."""
    rows = []
    for kind, words in (("left_out", "left out"), ("refused", "refused")):
        found = summary.get(kind) or {}
        pairs = found.items() if isinstance(found, Mapping) else (("a node", one) for one in found)
        rows += [[printable(who), words, printable(why)] for who, why in pairs]
    return Table("", ["client or node", "what", "why"], rows)
