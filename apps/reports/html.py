"""Write a report as one self-contained HTML file: tables, vector pictures, settings and origins of all runs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from florilegium.apps.origins.package import version
from florilegium.apps.reports.notes import notes
from florilegium.apps.reports.page_parts import Picture, picture_of
from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pictures import (
    PLACES,
    curve,
    figure_of,
    places,
    plot_clients,
    plot_curves,
    plot_pairs,
    plot_training,
    reader,
)
from florilegium.apps.reports.pools import GROUPS, Pool, Section
from florilegium.apps.reports.tables import MEANING, PAIRS_MEANING, figures_table, pairs_table
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.common.errors import FlorilegiumError
from florilegium.common.files import write_text
from florilegium.common.layout import SCRIPT, STYLE, table_html
from florilegium.common.pages import Table
from florilegium.strategies.folder.attempts import read_provenance
from florilegium.strategies.folder.metrics_file import TRAINING

FILE = "report.html"
_FOLDERS = ("--runs-dir", "--output")
"""Options that name a folder of whoever typed a command."""
TARGETS = (0.8, 0.9, 0.95)
"""Figures to be reached, as shares of the best method's final one."""


@dataclass(frozen=True)
class Lead:
    """What comes before the sections of a report: a table, a picture if there is one, and words about both."""

    table: Table
    figure: Figure | None = None
    words: str = ""


def write_html(
    found: Sequence[Section],
    skipped: Sequence[str],
    file: Path,
    title: str,
    leads: Sequence[Lead] = (),
    varied: Collection[str] = (),
    *,
    compared: bool = True,
) -> None:
    """Write a report as one HTML file.

    Args:
        found: the sections of the report.
        skipped: remarks that come first: a sentence for each run that is not in the report.
        file: the file to write.
        title: the report's title.
        leads: what comes before the sections, such as the table and picture of a sweep.
        varied: keys that differ on purpose.
        compared: whether the sections show curves and paired differences, which take much room with many methods.
    """
    text = templates().get_template("report.html.j2").render(
        title=title, version=version(), date=time.strftime("%Y-%m-%d"), **shown(found, skipped, varied, compared),
        leads=[(one.table, one.figure and picture_of(one.figure, title), one.words) for one in leads],
    )  # fmt: skip
    write_text(file, text)


def templates(*others: BaseLoader) -> Environment:
    """Return the templates of reports, and those of other loaders, which go before them."""
    loader = ChoiceLoader([*others, PackageLoader("florilegium.apps.reports", "")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals |= {
        "style": Markup(STYLE), "script": Markup(SCRIPT), "table_html": lambda *words: Markup(table_html(*words)),
    }  # fmt: skip
    return environment


def shown(
    found: Sequence[Section],
    skipped: Sequence[str],
    varied: Collection[str] = (),
    compared: bool = True,
    data: bool = True,
) -> dict[str, Any]:
    """Return what ``sections.html.j2`` shows of sections; arguments as for :func:`write_html`.

    Args:
        data: whether the clients' data are read, for the picture of who holds what.
    """
    parts = [_section(section, varied, compared, data) for section in found]
    return {"skipped": skipped, "meaning": MEANING, "pairs_meaning": PAIRS_MEANING, "sections": parts}


def _section(section: Section, varied: Collection[str], compared: bool, data: bool) -> dict[str, Any]:
    """Return everything that the template shows of a section."""
    pools, between = section.pools, pairs(section) if compared else []
    figure, main = figure_of(pools), pools[0].main
    curves = (curve(pool, reader(group, figure, main), "round") for pool in pools for group in GROUPS)
    drawn = compared and any(len(x) for x, _, _ in curves)
    pictures = [
        picture_of(plot_curves(pools, x), f"Mean {figure} of clients over {PLACES[x][0]}")
        for x in places(pools)
        if drawn
    ]
    if compared and any(len(curve(pool, reader(TRAINING, "loss"), "round")[0]) for pool in pools):
        pictures.append(picture_of(plot_training(pools), "Training loss over rounds"))
    if compared and any(run.figures(main.name) for pool in pools for run in pool.runs):
        pictures.append(picture_of(plot_clients(pools), f"Distribution of the clients' final {main.name}"))
    partition, why = _partition(pools[0]) if data else (None, "")
    return {
        "title": section.title(),
        "notes": notes(section, varied),
        "figures": figures_table(section),
        "pairs": pairs_table(between) if between else None,
        "differences": picture_of(plot_pairs(between), "Paired differences between methods") if between else None,
        "pictures": pictures,
        "reached": _reached(pools) if figure == main.name and main.percent else None,
        "figure": figure,
        "partition": partition,
        "no_partition": why,
        "privacy": _privacy(pools),
        "settings": settings_table(pools),
        "runs": origins_table(pools),
        "commands": _commands(pools),
    }


def _partition(pool: Pool) -> tuple[Picture | None, str]:
    """Return the picture of who holds what with the first seed, or None and why there is none."""
    from florilegium.partitions.federation import federate
    from florilegium.partitions.plots import draw_federation

    run = pool.runs[0]
    if run.origins and "partition" not in run.origins:
        return None, "The clients are real devices; their data stay there."
    try:
        settings, _ = parse(run.config)
        federation, dataset = federate(settings)
    except FlorilegiumError as error:
        return None, f"The clients' data cannot be shown here: {error}"
    title = f"{settings.dataset}: {settings.partitioner}, seed {settings.seed}"
    return picture_of(draw_federation(federation, dataset, title), "Training examples of each client and class"), ""


def _reached(pools: Sequence[Pool]) -> Table:
    """Return rounds, MB, seconds and minutes of simulated time until each pool's main figure reached the targets."""
    curves = {pool.label: [curve(pool, reader("seen", pool.main.name, pool.main), x) for x in PLACES] for pool in pools}
    best = max((float(own[0][1][-1]) for own in curves.values() if len(own[0][1])), default=0.0)
    rows = []
    for label, (rounds, traffic, seconds, simulated) in curves.items():
        row = [label]
        for share in TARGETS:
            above = np.flatnonzero(rounds[1] >= share * best)
            first = above[0] if len(above) else None
            row += ["never"] if first is None else [
                f"round {rounds[0][first]:.0f}, {traffic[0][first]:.1f} MB, {seconds[0][first]:.1f} s"
                + (f", {simulated[0][first]:.1f} min simulated" if len(simulated[0]) else "")
            ]  # fmt: skip
        rows.append(row)
    return Table("", ["method", *(f"{share * best:.1f} %" for share in TARGETS)], rows)


def _privacy(pools: Sequence[Pool]) -> Table | None:
    """Return the privacy accounts of the runs; None if no run is private."""
    accounts = {(pool.label, run.seed): run.summary["privacy"] for pool in pools for run in pool.runs
                if "privacy" in run.summary}  # fmt: skip
    if not accounts:
        return None
    names = list(dict.fromkeys(name for account in accounts.values() for name in account))
    rows = [[f"{label}, seed {seed}", *(_text(account.get(name)) for name in names)]
            for (label, seed), account in accounts.items()]  # fmt: skip
    return Table("", ["run", *(name.replace("_", " ") for name in names)], rows)


def settings_table(pools: Sequence[Pool]) -> Table:
    """Return the settings in which some pool differs from the defaults; the others are the defaults."""
    settings = [pool.runs[0].setting for pool in pools]
    keys = [key for key in dict.fromkeys(key for own in settings for key in own)
            if any(key in own and own[key] != defaults().get(key) for own in settings)]  # fmt: skip
    return Table(
        "",
        ["key", *(pool.label for pool in pools)],
        [[key, *(_text(own.get(key)) for own in settings)] for key in keys],
    )


def origins_table(pools: Sequence[Pool]) -> Table:
    """Return what carried each run out, and what it was made from."""
    head = ["run", "method", "seed", "started", "seconds", "engine", "machine", "florilegium", "torch", "flwr"]
    rows = []
    for label, run in ((pool.label, run) for pool in pools for run in pool.runs):
        parts = read_provenance(run.path)
        last = parts[-1] if parts else {}
        machine, versions = last.get("machine", {}), last.get("versions", {})
        kinds = [", ".join(machine.get("gpus", [])), machine.get("processor"), machine.get("threads")]
        cells = [
            run.name, label, run.seed, str(last.get("start", ""))[:16].replace("T", " "),
            sum(part["seconds"] for part in parts) if parts else None,
            f"{last['engine']}, workers: {last['workers']}" if last else "",
            ", ".join(str(kind) for kind in kinds if kind) + (" threads" if machine else ""),
            f"{versions['commit'] or versions['code']}{', modified' * versions['modified']}" if versions else "",
            versions.get("torch"), versions.get("flwr"),
            *(run.origins.get(name) for name in ("dataset", "partition")),
        ]  # fmt: skip
        rows.append([_text(cell) for cell in cells])
    return Table("", [*head, "hash of the dataset", "of the partition"], rows)


def _commands(pools: Sequence[Pool]) -> list[str]:
    """Return the commands that carried the runs out, each once, without the folders that they wrote to."""
    runs = [run for pool in pools for run in pool.runs]
    commands = [part.get("command", []) for run in runs for part in read_provenance(run.path)]
    return [text for text in dict.fromkeys(shlex.join(_anywhere(command)) for command in commands) if text]


def _anywhere(command: Sequence[str]) -> list[str]:
    """Return the words of a command without options that only say where files go."""
    words, kept = iter(command), list[str]()
    for word in words:
        if word in _FOLDERS:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in _FOLDERS)):
            kept.append(word)
    return kept


def _text(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
