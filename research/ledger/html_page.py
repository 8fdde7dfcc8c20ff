"""Write the ledger as one HTML page: every number of every paper in a table that sorts and filters."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from florilegium.common.files import write_text
from florilegium.common.layout import page_html, table_html
from florilegium.common.pages import Table
from florilegium.research.ledger.page import HEAD, ORDER, ordered, ours_of, summary, told
from florilegium.research.ledger.records import Paper

CELLS = ("number", "paper", "published", "ours", "seeds", "budget", "verdict", "why not run")


def write_html_ledger(papers: Sequence[Paper], path: Path) -> None:
    """Write the page to ``path``; what its columns mean stands in ``ledger.md``."""
    parts = [
        "<p>What the columns mean, and the command of each row: <code>ledger.md</code>, which "
        "<code>florilegium ledger</code> writes beside this page.</p>",
        "<h2>Papers</h2>", table_html(Table("", HEAD, summary(papers)), "Papers"),
        "<h2>Does the order hold?</h2>", table_html(Table("", ORDER, ordered(papers)), "Orders"),
        "<h2>Every number</h2>", table_html(Table("", CELLS, cells(papers)), "Every number", "many"),
    ]  # fmt: skip
    sources = "; ".join(f"{paper.published.title}: {paper.published.source}" for paper in papers)
    write_text(path, page_html("Ledger", "Numbers that papers print, beside ours", *parts, f"<p>{escape(sources)}</p>"))


def cells(papers: Sequence[Paper]) -> list[list[str]]:
    """Return a row for each number, in the order of ``CELLS``."""
    rows = []
    for paper in papers:
        for table in paper.tables:
            for cell in table.cells:
                runs = cell.measured.runs if cell.measured else None
                rows.append([
                    f"{table.printed.name}: {cell.row}, {cell.column}", paper.published.title, cell.published.text,
                    ours_of(cell), str(len(runs.seeds)) if runs else "", runs.budget if runs else "",
                    told(cell) if runs else "not run", "" if runs else cell.why,
                ])  # fmt: skip
    return rows
