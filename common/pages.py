"""Pages: Markdown files of texts and tables, with pictures beside them. Every page that the suite writes is one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from florilegium.common.files import write_atomically, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Table:
    """A table of texts; the first column is its rows' heading.

    Attributes:
        title: what it is about; "" if the text around says it.
        head: the columns' headings.
        rows: a text for each heading.
        quiet: headings of columns that are there for comparison alone; they are shown in grey, or in italics.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    quiet: Collection[str] = ()


def markdown(table: Table) -> str:
    """Return a table in Markdown, without its title."""
    rows = [
        [f"*{cell}*" if name in table.quiet and cell else cell for name, cell in zip(table.head, row, strict=True)]
        for row in table.rows
    ]
    lines = [table.head, ["---"] * len(table.head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table without title in Markdown; it ends in a newline."""
    return markdown(Table("", head, rows))


def page_of(*parts: str | Table) -> str:
    """Return texts and tables in Markdown, an empty line between them; a table's title becomes a heading."""
    return "\n\n".join(_part(part).strip() for part in parts)


def write_page(file: Path, *parts: str | Table) -> str:
    """Write texts and tables to a Markdown file (:func:`page_of`); return its text without the last newline."""
    text = page_of(*parts)
    write_text(file, text + "\n")
    return text


def _part(part: str | Table) -> str:
    if isinstance(part, str):
        return part
    return (f"## {part.title}\n\n" if part.title else "") + markdown(part)


def write_picture(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Write a figure in the format that the file's name ends in."""
    kind = path.suffix.removeprefix(".")
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=dpi, format=kind))
