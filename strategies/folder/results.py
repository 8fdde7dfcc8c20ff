"""What a completed run leaves: ``summary.json``, and ``clients.csv`` with a line per client of the last evaluation."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from florilegium.common.errors import RunError

SUMMARY, CLIENTS = "summary.json", "clients.csv"
WORDS = ("client", "name", "group")
"""Columns of ``clients.csv`` that hold words; the others hold numbers, or nothing."""


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the contents of a run's ``summary.json``; {} if the run has not completed.

    Its entry "final" has the final figures by group of clients, "rounds" the number of rounds.

    Raises:
        RunError: if the file is damaged.
    """
    file = folder / SUMMARY
    try:
        summary = dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file} is damaged: {error}") from error
    if summary and not (isinstance(summary.get("rounds"), int) and _is_figures(summary.get("final"))):
        raise RunError(f"{file} is damaged: it lacks the number of rounds or the final figures")
    return summary


def _is_figures(final: object) -> bool:
    return isinstance(final, dict) and all(isinstance(figures, dict) for figures in final.values())


def read_clients(folder: Path) -> list[dict[str, str]]:
    """Return the lines of a run's ``clients.csv``, each with "client" and "group"; [] if there is no such file.

    All cells but those of ``WORDS`` are numbers, or empty.

    Raises:
        RunError: if the file is damaged.
    """
    file = folder / CLIENTS
    if not file.exists():
        return []
    try:
        with file.open(encoding="utf-8", newline="") as text:
            reader = csv.DictReader(text, restkey="", strict=True)
            head, lines = reader.fieldnames or (), list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise RunError(f"{file} is damaged: {error}") from error
    if not {"client", "group"} <= {*head}:
        raise RunError(f"{file} is damaged: its first line lacks client or group")
    for number, line in enumerate(lines, start=2):
        if "" in line or None in line.values():
            raise RunError(f"{file} is damaged: line {number} has not one cell for each heading")
        for name, cell in line.items():
            if name not in WORDS and cell and not _is_number(cell):
                raise RunError(f"{file} is damaged: {name} in line {number} is no number: '{cell:.40}'")
    return lines


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
