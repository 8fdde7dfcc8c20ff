"""Print tables of the command line: for people on a terminal, for programs into a file or pipe, or as JSON."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console

if TYPE_CHECKING:
    from florilegium.apps.reports.writing import Report


@dataclass(frozen=True)
class Valued:
    """A cell whose text says less than its value, such as a rounded number."""

    value: Any
    text: str


Cell = str | int | None | Valued | Sequence[str]
"""A text, a number, nothing, or items that are listed; an item is not broken over lines."""


@dataclass
class _Wanted:
    """What a command that was asked for JSON has to tell."""

    content: Any = None


_JSON: ContextVar[_Wanted | None] = ContextVar("json", default=None)

GAP = 2
INDENT = 4
_NUMBERS = re.compile(r"[-+]?[\d.]*|·")
_SPACE = "\N{NO-BREAK SPACE}"
_MEANING = "± is the standard error over seeds; intervals are of 95 %. The report has the whole explanation."


def show(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str = "") -> None:
    """Print a table whose first column holds names to be copied.

    On a terminal, a row is one line with as many of the first columns as there is room for; the others follow below
    it, each with its heading. Nothing is cut, however narrow the terminal, and the first column is never wrapped.

    In a file or pipe there is no width to fit, and the reader is a program: a line for the headings and one for each
    row, separated by tabs, so that grep, sort and cut see whole rows and whole names. The title is omitted.

    Within :func:`as_json` each row becomes an object, whose names are the headings.

    Args:
        columns: headings.
        rows: a cell for each heading; "" or [] for nothing.
        title: a line above the table.
    """
    names = [column.replace(" ", "_") for column in columns]
    if give([dict(zip(names, map(_value, row), strict=True)) for row in rows]):
        return
    console = Console()
    if not console.is_terminal:
        for row in [columns, *rows]:
            print("\t".join(re.sub(r"\s+", " ", _text(cell)) for cell in row))
        return
    widths = _widths(columns, rows)
    first = _fitting(widths, console.width)
    right = [all(_NUMBERS.fullmatch(_text(row[at])) for row in rows) for at in range(first)]
    if title:
        console.print(title, style="italic", highlight=False, markup=False, soft_wrap=True)

    def line(row: Sequence[Cell], style: str = "") -> None:
        cells = []
        for at, text in enumerate(map(_text, row[:first])):
            space = " " * (widths[at] - cell_len(text))
            cells.append(space + text if right[at] else text + space)
        console.print(
            (" " * GAP).join(cells).rstrip(), style=style, highlight=False, markup=False, soft_wrap=True
        )  # fmt: skip

    line(columns, "bold")
    for row in rows:
        line(row)
        for below in _below(columns[first:], row[first:], console.width):
            console.print(below, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def as_json() -> Iterator[None]:
    """Context in which the table that a command shows is printed as JSON, at the end; [] if it shows none."""
    wanted = _Wanted()
    token = _JSON.set(wanted)
    try:
        yield
    finally:
        _JSON.reset(token)
    print(json.dumps([] if wanted.content is None else wanted.content, ensure_ascii=False, indent=1))


def give(content: Any) -> bool:
    """Return whether JSON is wanted; if so, ``content`` is what will be printed."""
    wanted = _JSON.get()
    if wanted is not None:
        wanted.content = content
    return wanted is not None


def tell(line: object) -> None:
    """Print a line beside a table, such as the name of a file written: to standard error where JSON is wanted."""
    print(line, file=sys.stdout if _JSON.get() is None else sys.stderr)


def fit(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> bool:
    """Return whether :func:`show` prints these rows on one line each, or as JSON."""
    console = Console()
    return (
        _JSON.get() is not None
        or not console.is_terminal
        or _fitting(_widths(columns, rows), console.width) == len(columns)
    )


def _text(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case Valued():
            return cell.text
        case str() | int():
            return str(cell)
    return ", ".join(cell)


def _value(cell: Cell) -> Any:
    return cell.value if isinstance(cell, Valued) else cell


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[int]:
    return [max(cell_len(_text(row[at])) for row in [columns, *rows]) for at in range(len(columns))]


def _fitting(widths: Sequence[int], room: int) -> int:
    """Return how many of the first columns have room on a line, at least one."""
    count, used = 1, widths[0]
    while count < len(widths) and (used := used + GAP + widths[count]) <= room:
        count += 1
    return count


def _below(headings: Sequence[str], cells: Sequence[Cell], room: int) -> list[str]:
    """Return lines with the cells that have no room beside the name; short ones share a line."""
    lines: list[str] = []
    single = False  # whether the last line holds whole cells
    for heading, cell in zip(headings, cells, strict=True):
        if not _text(cell):
            continue
        text = _text(cell)
        if isinstance(cell, Sequence) and not isinstance(cell, str):
            text = ", ".join(item.replace(" ", _SPACE) for item in cell)
        wrapped = textwrap.wrap(
            f"{heading}: {text}", max(room, 2 * INDENT), initial_indent=" " * INDENT,
            subsequent_indent=" " * (INDENT + GAP), break_on_hyphens=False,
        )  # fmt: skip
        together = f"{lines[-1]}{' ' * GAP}{wrapped[0].strip()}" if single else ""
        if single and len(wrapped) == 1 and len(together) <= room:
            lines[-1] = together
        else:
            lines += wrapped
        single = len(wrapped) == 1
    return [line.replace(_SPACE, " ") for line in lines]


def show_report(report: Report) -> None:
    """Print a report's tables and remarks, and on a terminal what ± and the intervals are."""
    for table in report.tables:
        show(table.head, table.rows, table.title)
        print()
    console = Console()
    for text in [*report.remarks, *([_MEANING] if console.is_terminal else [])]:
        print(textwrap.fill(text, console.width) if console.is_terminal else text)
