"""Attacks on what a finished run releases; each module has a function ``attack(run)`` (``florilegium audit``)."""

from __future__ import annotations

from collections.abc import Sequence


def rows_of(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of these rows; the first one is the head."""
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
