"""The table of docs/results/speed.md: a line for each measurement, with the one before and with its memory."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.memory import Memory
from florilegium.common.files import write_text

_HEAD = ("section", "what", "before", "now", "bound", "met", "GB", "details", "measured on")
_NOTES = Path(__file__).parent / "speed_notes.md"
PEERS, _THERE = Path(__file__).parent / "peers" / "measured.md", "<!-- peers -->\n"
"""The table of other packages, which :mod:`benchmarks.peers.measuring` writes, and its place in the notes."""
_NONE = "–"


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured, the value, its bound (negative: "at least") and unit, and details."""

    what: str
    value: float
    bound: float
    unit: str
    details: str

    @property
    def met(self) -> bool:
        """Whether the value meets its bound; a negative bound means "at least" its absolute value."""
        return self.value <= self.bound if self.bound > 0 else self.value >= -self.bound


class Table:
    """The table in a file, of which sections can be measured anew.

    Args:
        target: the file.
        sections: all sections, in their order.
    """

    def __init__(self, target: Path, sections: Iterable[str], *, writes: bool = True) -> None:
        self._target, self._writes = target, writes
        self._lines: dict[str, dict[str, dict[str, str]]] = {section: {} for section in sections}
        for line in target.read_text(encoding="utf-8").splitlines() if target.exists() else ():
            cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
            if cells[0] in self._lines and len(cells) == len(_HEAD):
                self._lines[cells[0]][cells[1]] = dict(zip(_HEAD, cells, strict=True))

    def measure(self, section: str, rows: Iterable[Row], workers: int, *, whole: bool = True) -> None:
        """Measure rows of a section; print each, and write the file after it.

        Args:
            section: its name.
            rows: are measured one after the other, or all before the first.
            workers: number of worker processes.
            whole: whether these are all rows, so that others are deleted at the end.
        """
        lines, found = self._lines[section], list[str]()
        with Memory(psutil.Process().pid) as memory:
            for row in rows:
                lines[row.what] = _line(section, row, memory.take(), workers, lines.get(row.what))
                found.append(row.what)
                print(_row(lines[row.what].values()), flush=True)
                self.write()
        if whole:
            self._lines[section] = {what: lines[what] for what in found}
            self.write()

    def write(self) -> None:
        """Write the table and the notes below it, unless rows are only printed."""
        if not self._writes:
            return
        lines = [_row(line.values()) for section in self._lines.values() for line in section.values()]
        title = "# Speed\n\n`python -m benchmarks [SECTION …]`\n\n"
        table = "\n".join([_row(_HEAD), f"|{len(_HEAD) * '---|'}", *lines])
        peers = PEERS.read_text(encoding="utf-8") if PEERS.exists() else ""
        notes = _NOTES.read_text(encoding="utf-8").replace(_THERE, peers)
        write_text(self._target, f"{title}{table}\n\n{notes}")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(section: str, row: Row, memory: float, workers: int, earlier: dict[str, str] | None) -> dict[str, str]:
    today = str(datetime.date.today())
    sign = "≤" if row.bound > 0 else "≥"
    cells = (
        section, row.what, _before(earlier, today), f"{row.value:.2f}{row.unit}",
        f"{sign} {abs(row.bound):g}{row.unit}", "yes" if row.met else "NO", f"{memory:.2f}", row.details,
        f"{today}; {machine(workers)}",
    )  # fmt: skip
    return dict(zip(_HEAD, cells, strict=True))


def _before(earlier: dict[str, str] | None, today: str) -> str:
    """Return the last value of another day with its date."""
    if earlier is None:
        return _NONE
    day = earlier["measured on"].partition(";")[0]
    return earlier["before"] if day == today else f"{earlier['now']} ({day})"


def machine(workers: int) -> str:
    """Return the processor, the number of workers, and the versions of Flower and PyTorch, in a few words."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = " ".join((named[0] if named else platform.processor()).split()[:2])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("flwr", "torch"))
    return f"{model}, {psutil.cpu_count()} cores, {workers} workers; {versions}"
