"""The words of the documentation: the house's vocabulary, short table cells, spelling (style: CONTRIBUTING.md)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import BIN, ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST = 29
"""Words that a cell of a table may have. Explanations belong in sentences under the table."""
INSTEAD = {
    r"\banswers?\b|\banswered\b": "reply, update; a client returns something",
    r"\bshall\b": "should, must, or the present tense",
    r"\btorch says\b": "PyTorch raises an error",
    r"\bwith(?:out)? a word\b": "say where it is reported",
    r"\bruns of before\b": "runs from earlier versions",
    r"\btaught\b": "trained",
    r"\bas ever\b": "as in all other cases",
    r"\bwholly\b": "completely, fully",
    r"\b(?:the|a|known) laws?\b|\bof a law\b": "distribution",
    r"\bin the place of\b": "instead of",
    r"\bbroken off\b": "interrupted",
    r"\bis said\b": "reports, logs, is reported",
    r"\bby held-back (?:images|examples|pictures)\b": "chosen on held-out training examples",
    r"\bnobody's seed\b": "not drawn from the seed",
}
"""Words and phrases that are no plain technical English, and what to write instead."""


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page's prose and tables: no code, no targets of links."""
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
    text = re.sub(r"`[^`\n]+`|\]\([^)\n]*\)", "", text)
    return ((n, line) for n, line in enumerate(text.splitlines(), 1) if not line.startswith(("    ", ":::")))


def _cells(text: str) -> Iterator[str]:
    """Yield the cells of all tables of a page."""
    for line in text.splitlines():
        if line.startswith("|"):
            yield from re.split(r"(?<!\\)\|", line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_words_are_plain_and_cells_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [
        f"{page.relative_to(ROOT)}:{number}: '{match[0]}': {instead}"
        for number, line in _lines(text)
        for words, instead in INSTEAD.items()
        for match in re.finditer(words, line, re.IGNORECASE)
    ]
    assert not found
    longest = 35 if page.parts[-2:] == ("results", "speed.md") else LONGEST  # figures that belong together
    assert not [cell for cell in _cells(text) if len(cell.split()) > longest]


def test_spelling() -> None:
    words = "fo,fro,metod"  # FedFomo's F_o; "to and fro"; a mistake that a message is about
    done = subprocess.run(
        [BIN / "codespell", "--ignore-words-list", words, *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stdout + done.stderr
