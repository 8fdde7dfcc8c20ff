"""``provenance.json`` in a run's folder: what carried the run out, a part for its start and one for each resume."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from florilegium.common.errors import RunError
from florilegium.common.files import write_text

PROVENANCE, STATUS = "provenance.json", "status.json"


class Attempts:
    """Writes the file of one run.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[dict[str, Any]] = []
        self._started = 0.0

    def begin(self, part: Mapping[str, Any]) -> None:
        """Add a part, which begins now, to those of earlier attempts."""
        self._parts = [
            *read_provenance(self._folder),
            {"start": datetime.now(UTC).isoformat(timespec="seconds"), **part},
        ]
        self._started = time.monotonic()
        self._write()

    def end(self) -> None:
        """Write the duration of the part that has begun, if one has."""
        if self._parts:
            self._parts[-1]["seconds"] = round(time.monotonic() - self._started, 3)
            self._write()

    def note(self, **facts: Any) -> None:
        """Add facts (JSON values) to the part that has begun."""
        self._parts[-1] |= facts
        self._write()

    def _write(self) -> None:
        write_text(self._folder / PROVENANCE, json.dumps(self._parts, indent=2) + "\n")


def read_provenance(folder: Path) -> list[dict[str, Any]]:
    """Return the parts of a run's ``provenance.json``, the first attempt first; [] for runs of earlier versions.

    A part that was interrupted, or goes on, lasts until the run's last status.

    Raises:
        RunError: if the file is damaged.
    """
    file = folder / PROVENANCE
    if not file.exists():
        return []
    try:
        parts = [dict(part) for part in json.loads(file.read_text(encoding="utf-8"))]
        if parts and "seconds" not in parts[-1]:
            start = datetime.fromisoformat(parts[-1]["start"]).timestamp()
            status = folder / STATUS
            last = status.stat().st_mtime if status.exists() else start
            parts[-1]["seconds"] = round(max(0.0, last - start), 3)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{file} is damaged: {error}") from error
    return parts
