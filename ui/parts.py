"""The parts of pages, each made of certain files, so that a page asks again only for what has changed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from jinja2 import Environment

from florilegium.apps.reports.html import origins_table, shown
from florilegium.apps.reports.page_parts import picture_of
from florilegium.apps.reports.pictures import figure_of, plot_clients, plot_curves, plot_training
from florilegium.apps.reports.pools import sections
from florilegium.apps.reports.run_records import RunRecord
from florilegium.apps.reports.writing import load_runs
from florilegium.apps.runs.progress import read_failures, read_progress
from florilegium.apps.runs.run_list import state_of
from florilegium.common.errors import FlorilegiumError
from florilegium.common.foreign import printable
from florilegium.common.plugins import installed_only
from florilegium.strategies.folder.metrics_file import TRAINING
from florilegium.strategies.folder.results import read_summary
from florilegium.strategies.folder.run_folder import read_config, read_origins
from florilegium.ui.failed import MOST_MAPPED, failures_map, failures_table
from florilegium.ui.folders import LIMITS, Mark, mark_of
from florilegium.ui.records import (
    MOST_CLIENTS,
    changed_settings,
    clients_table,
    left_out,
    pool_of,
    record_of,
    spread,
)
from florilegium.ui.spread import plot_spread

_KEPT = 256
"""Parts that are remembered."""
_DRAWING = threading.Lock()
"""Held by who draws: matplotlib is not made for several threads."""
_DAMAGED = (
    FlorilegiumError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
)
"""Errors that files with unexpected content raise; the page gives them in place of the part."""


@dataclass(frozen=True)
class Part:
    """A part of the page of a run.

    Attributes:
        files: the files that it is made of.
        make: returns what its template shows of the run in a folder.
    """

    files: Sequence[str]
    make: Callable[[Path], Mapping[str, Any]]


def _progress(run: Path) -> dict[str, Any]:
    found = read_progress(run)
    status, summary = found.status, read_summary(run)
    rounds = int(status.get("rounds") or 0)
    return {
        "state": str(status["state"]), "head": found.head(), "speed": found.speed(),
        "done": min(int(status.get("round") or 0), rounds), "rounds": rounds,
        "error": printable(status.get("error") or "", 2000),
        "warnings": [printable(one, 2000) for one in summary.get("warnings", ())],
        "evaluated": found.evaluated(*found.main.columns), "exchanges": found.exchanges(),
    }  # fmt: skip


def _curves(run: Path) -> dict[str, Any]:
    record = record_of(run, metrics=True)
    pools = [pool_of(record)]
    pictures = []
    with _DRAWING:
        if any(record.summary["final"].values()):
            drawn = plot_curves(pools, "round")
            pictures.append(picture_of(drawn, f"Mean {figure_of(pools)} of clients over rounds"))
        if any("loss" in line.get(TRAINING, {}) for line in record.metrics):
            pictures.append(picture_of(plot_training(pools), "Training loss over rounds"))
    return {"pictures": pictures}


def _clients(run: Path) -> dict[str, Any]:
    record = record_of(run, metrics=True, clients=True)
    course, picture, deciles, pool = None, None, spread(record), pool_of(record)
    with _DRAWING:
        if (drawn := plot_spread(pool)) is not None:
            course = picture_of(drawn, "Spread over the clients over rounds")
        if deciles.rows:
            picture = picture_of(plot_clients([pool]), "Distribution of the clients' figures")
    return {
        "course": course, "drawn": picture, "deciles": deciles, "clients": clients_table(record),
        "number": len(record.clients), "most": MOST_CLIENTS,
    }  # fmt: skip


def _failures(run: Path) -> dict[str, Any]:
    found, picture = read_failures(run), None
    if found:
        with _DRAWING:
            picture = picture_of(failures_map(found), "Rounds in which clients were skipped")
    return {
        "drawn": picture, "skipped": failures_table(found), "left_out": left_out(read_summary(run)),
        "times": len(found), "number": len({str(line["client"]) for line in found}), "mapped": MOST_MAPPED,
    }  # fmt: skip


def _origins(run: Path) -> dict[str, Any]:
    record = RunRecord(run, read_config(run), origins=read_origins(run))
    return {"settings": changed_settings(record.config), "origins": origins_table([pool_of(record)])}


_STATE = ("status.json", ".lock")
_RECORD = ("config.toml", "summary.json", *_STATE)
PARTS: Mapping[str, Part] = {
    "progress": Part(
        ("status.json", "metrics.jsonl", "metrics.prom", "failures.jsonl", "summary.json", ".lock"), _progress
    ),
    "curves": Part((*_RECORD, "metrics.jsonl"), _curves),
    "clients": Part((*_RECORD, "metrics.jsonl", "clients.csv"), _clients),
    "failures": Part(("failures.jsonl", "summary.json"), _failures),
    "origins": Part(("config.toml", "origins.json", "provenance.json", "status.json"), _origins),
}
"""The parts of a run's page, by the names of their templates."""


@dataclass(frozen=True)
class Shown:
    """A part as it is shown.

    Attributes:
        version: changes when the part may have changed.
        html: the part.
    """

    version: str
    html: str


class Pages:
    """Makes parts of pages, and remembers them until their files change.

    Args:
        templates: of all pages.
        own_code: whether runs may name code of one's own, which is imported to compare them.
    """

    def __init__(self, templates: Environment, *, own_code: bool = False) -> None:
        self._templates, self._own_code = templates, own_code
        self._kept: OrderedDict[tuple[str, ...], Shown] = OrderedDict()

    def part(self, run: Path, name: str, known: str = "") -> Shown | None:
        """Return a part of the page of the run in folder ``run``; None if ``known`` is its version."""
        return self._remembered((str(run), name), known, lambda: self._made(run, name), (run, PARTS[name].files))

    def compared(self, runs: Sequence[Path]) -> str:
        """Return the report on several runs, without their data."""
        found = self._remembered(
            tuple(map(str, runs)), "", lambda: self._report(runs), *((run, LIMITS) for run in runs)
        )
        assert found is not None
        return found.html

    def _remembered(
        self, key: tuple[str, ...], known: str, make: Callable[[], str], *files: tuple[Path, Iterable[str]]
    ) -> Shown | None:
        marks = [_mark(run, names) for run, names in files]
        if (version := blake2b(repr(marks).encode(), digest_size=8).hexdigest()) == known:
            return None
        found = self._kept.get(key)
        if found is None or found.version != version:
            self._kept[key] = found = Shown(version, make())
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found

    def _made(self, run: Path, name: str) -> str:
        try:
            mark_of(run, PARTS[name].files)
            with installed_only():
                content = PARTS[name].make(run)
            return self._templates.get_template(f"{name}.html.j2").render(run=run.name, **content)
        except _DAMAGED as error:
            return self._problem(run, error)

    def _report(self, runs: Sequence[Path]) -> str:
        try:
            for run in runs:
                mark_of(run)
            with nullcontext() if self._own_code else installed_only(), _DRAWING:
                found, skipped = load_runs(runs)
                content = shown(sections(found), skipped, data=False)
            return self._templates.get_template("compared.html.j2").render(**content)
        except _DAMAGED as error:
            return self._problem(runs[0].parent, error)

    def _problem(self, run: Path, error: Exception) -> str:
        """Return what is shown in place of a part that cannot be made."""
        why = (
            str(error)
            if isinstance(error, FlorilegiumError)
            else f"a file has another content than expected: {error!r}"
        )
        words = printable(why.replace(f"{run}/", "").replace(f"{run.parent}/", ""), 2000)
        return self._templates.get_template("problem.html.j2").render(why=words)


def _mark(run: Path, names: Iterable[str]) -> tuple[Mark | str, str]:
    """Return what changes when a run's files do, or its process dies; why they must not be read, if so."""
    try:
        return mark_of(run, names), state_of(run) if {*_STATE} <= {*names} else ""
    except FlorilegiumError as error:
        return str(error), ""
