"""Write a report: ``report.md`` with its pictures and, on demand, one self-contained ``report.html``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from florilegium.apps.reports.notes import notes
from florilegium.apps.reports.pairs import pairs
from florilegium.apps.reports.pictures import plot_pools
from florilegium.apps.reports.pools import Section, sections
from florilegium.apps.reports.run_records import RunRecord, load_run
from florilegium.apps.reports.tables import MEANING, PAIRS_MEANING, figures_table, pairs_table
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.pages import Table, markdown, write_page, write_picture


@dataclass(frozen=True)
class Report:
    """What a report says, for the terminal; its folder has more.

    Attributes:
        tables: its tables, each with a title.
        remarks: what must be known of them, as sentences.
    """

    tables: Sequence[Table]
    remarks: Sequence[str]

    def markdown(self) -> str:
        """Return tables and remarks in Markdown."""
        parts = [f"**{table.title}**\n\n{markdown(table)}" for table in self.tables]
        return "\n".join([*parts, *(f"{remark}\n" for remark in self.remarks)])


def load_runs(paths: Sequence[Path]) -> tuple[list[RunRecord], list[str]]:
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


def write_report(paths: Sequence[Path], target: Path, title: str = "Report", *, html: bool = False) -> Report:
    """Write ``report.md`` and its pictures about the runs in ``paths`` to folder ``target``; return what it says.

    Runs that differ in the seed alone are pooled; runs on other clients or data get a section of their own.

    Args:
        paths: the runs' folders.
        target: a folder. Files of an earlier report there are replaced or removed.
        title: the report's title.
        html: whether to write ``report.html``, too: one self-contained file with more pictures and tables.

    Raises:
        RunError: if no run has completed.
    """
    runs, skipped = load_runs(paths)
    found = sections(runs)
    remove_report(target)
    tables: list[Table] = []
    remarks: list[str] = list(skipped)
    text = [f"# {title}"]
    for number, section in enumerate(found, start=1):
        own, said = _tables(section), notes(section)
        name = "report.png" if number == 1 else f"report-{number}.png"
        write_picture(plot_pools(section.pools), target / name)
        text += [f"## {section.title()}", *map(markdown, own), *said, f"![{section.title()}]({name})"]
        tables += own
        remarks += said
    sources = [
        f"- {pool.label}, seed {run.seed}: `{run.name}`"
        for section in found
        for pool in section.pools
        for run in pool.runs
    ]
    write_page(target / "report.md", *text, *skipped, MEANING, PAIRS_MEANING, "Runs:", "\n".join(sources))
    if html:
        from florilegium.apps.reports.html import FILE, write_html

        write_html(found, skipped, target / FILE, title)
    return Report(tables, remarks)


def _tables(section: Section) -> list[Table]:
    between = pairs(section)
    own = [figures_table(section, section.title())]
    return own + ([pairs_table(between, "paired differences")] if between else [])


def remove_report(target: Path) -> None:
    """Remove the files of an earlier report from a folder, since the next one may have fewer."""
    for pattern in ("report.md", "report.html", "report.png", "report-*.png"):
        for file in target.glob(pattern):
            file.unlink()
