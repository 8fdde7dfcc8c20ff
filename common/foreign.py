"""Text that came from another machine, made fit for logs, files and terminals."""

from __future__ import annotations


def printable(text: object, most: int = 500) -> str:
    """Return ``text`` as one line of at most ``most`` characters, without any that a terminal would obey.

    Line breaks, escape sequences, and characters that hide or reorder others become visible escapes such as ``\\x1b``.
    """
    cut = str(text)[:most]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)[:most]


def spreadsheet_cell(text: str) -> str:
    """Return ``text`` for a CSV file; an apostrophe goes before what a spreadsheet would carry out as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
