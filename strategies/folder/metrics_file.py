"""``metrics.jsonl`` in a run's folder: a line per round, to which the figures of its evaluation belong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from florilegium.common.errors import RunError
from florilegium.common.files import append_text, flush_to_disk, write_text

FILE = "metrics.jsonl"
TRAINING = "training"
"""Key of what the training of a round did (:mod:`florilegium.strategies.core.round_record`)."""
SIMULATED = "simulated_seconds"
"""Key of the virtual time since the run's start (:mod:`florilegium.strategies.exchange.clock`)."""


def is_evaluated(line: Mapping[str, Any]) -> bool:
    """Return whether a line has figures of an evaluation; earlier versions wrote no others."""
    return "evaluation_seconds" in line or TRAINING not in line


class MetricsFile:
    """Writes the file of one run, a line at a time.

    Args:
        folder: the run's folder.

    Attributes:
        evaluations: the lines with an evaluation, in the order of rounds.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._last: dict[str, Any] = {}
        self.evaluations: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Delete the file of an attempt that died early."""
        self._path.unlink(missing_ok=True)

    def cut(self, after: int) -> None:
        """Delete all lines of rounds later than ``after``, and one that a power cut has torn.

        Raises:
            RunError: if the file is damaged.
        """
        self._rewrite([line for line in read_metrics(self._path.parent) if line["round"] <= after])

    def add(self, line: dict[str, Any]) -> None:
        """Append a line; if the last one is of the same round, which is evaluated once more, update that instead."""
        if self._last and self._last["round"] == line["round"]:
            self._rewrite([*read_metrics(self._path.parent)[:-1], {**self._last, **line}])
            return
        append_text(self._path, _written(line))
        self._last = line
        if is_evaluated(line):
            self.evaluations.append(line)

    def _rewrite(self, lines: list[dict[str, Any]]) -> None:
        write_text(self._path, "".join(map(_written, lines)))
        self._last, self.evaluations = lines[-1] if lines else {}, [line for line in lines if is_evaluated(line)]

    def losses(self) -> list[float]:
        """Return the training loss of each round so far that reports one."""
        training = [line.get(TRAINING, {}) for line in read_metrics(self._path.parent)]
        return [float(entry["loss"]) for entry in training if "loss" in entry]

    def flush(self) -> None:
        """Make sure that the lines so far outlast a power cut."""
        flush_to_disk(self._path)


def _written(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``metrics.jsonl``, in the order of rounds; empty if no round has ended.

    A line that a power cut has torn, the last one, is left out.

    Raises:
        RunError: if another line is damaged.
    """
    file = folder / FILE
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_read(line))
        except ValueError as error:
            if number < len(lines):
                raise RunError(f"{file} is damaged in line {number}: {error}") from error
    return found


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """Return those lines of :func:`read_metrics` that have figures of an evaluation."""
    return [line for line in read_metrics(folder) if is_evaluated(line)]


def _read(text: str) -> dict[str, Any]:
    """Return a line; raise ``ValueError`` if it is torn."""
    line = json.loads(text) if text.endswith("\n") else None
    if not isinstance(line, dict) or "round" not in line:
        raise ValueError("it is incomplete")
    return line
