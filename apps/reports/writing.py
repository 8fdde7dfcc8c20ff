"""Write a report: ``report.md`` with its pictures and, on demand, one self-contained ``report.html``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from florilegium.apps.reports.pictures import plot_pools
from florilegium.apps.reports.pools import Section, pairs, sections
from florilegium.apps.reports.records import Run, load_run
from florilegium.apps.reports.tables import MEANING, PAIRS_MEANING, figures_table, pairs_table
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.files import write_atomically, write_text


def load_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the completed runs among ``paths``, and a sentence for each other one that says why it does not count.

    Raises:
        RunError: if no run has completed.
    """
    runs, skipped = [], []
    for path in dict.fromkeys(paths):
        try:
            runs.append(load_run(path))
        except (RunError, ConfigurationError) as error:
            skipped.append(f"Not in this report: {error}.")
    if not runs:
        raise RunError("\n".join(skipped) or "there is no run to report on")
    return runs, skipped


def write_report(paths: Sequence[Path], target: Path, title: str = "Report", *, html: bool = False) -> str:
    """Write ``report.md`` and its pictures about the runs in ``paths`` to folder ``target``; return the tables.

    Runs that differ in the seed alone are pooled; runs on other clients or data get a section of their own.

    Args:
        paths: the runs' folders.
        target: a folder.
        title: the report's title.
        html: whether to write ``report.html``, too: one self-contained file with more pictures and tables.

    Raises:
        RunError: if no run has completed.
    """
    runs, skipped = load_runs(paths)
    found = sections(runs)
    texts, pictures = (
        [_tables(section) for section in found],
        [
            _picture(section, target, f"report{f'-{number}' if number else ''}.png")
            for number, section in enumerate(found)
        ],
    )
    remarks = "".join(f"\n{sentence}\n" for sentence in skipped)
    parts = [f"{text}\n{picture}\n" for text, picture in zip(texts, pictures, strict=True)]
    write_text(
        target / "report.md",
        f"# {title}\n\n" + "\n".join(parts) + f"{remarks}\n{MEANING}\n\n{PAIRS_MEANING}\n\n{_sources(found)}",
    )
    if html:
        from florilegium.apps.reports.html import write_html

        write_html(found, skipped, target, title)
    return "\n".join(texts) + remarks


def _tables(section: Section) -> str:
    parts = [f"## {section.title}", figures_table(section), pairs_table(pairs(section)), *section.notes]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _picture(section: Section, target: Path, name: str) -> str:
    """Write a section's picture to file ``name``; return the Markdown that shows it."""
    figure = plot_pools(section.pools)
    write_atomically(target / name, lambda temporary: figure.savefig(temporary, dpi=130, format="png"))
    return f"![{section.title}]({name})"


def _sources(found: Sequence[Section]) -> str:
    lines = [
        f"- {pool.label}, seed {run.seed}: `{run.name}`"
        for section in found
        for pool in section.pools
        for run in pool.runs
    ]
    return "Runs:\n\n" + "\n".join(lines) + "\n"
