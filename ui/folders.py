"""The folders of runs, taken for what anybody may have put there: names, kinds and sizes are checked before reading."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from florilegium.apps.runs.run_list import ListedRun, listed, state_of
from florilegium.common.errors import RunError
from florilegium.common.settings import NAME

_MEGABYTE = 1 << 20
LIMITS: Mapping[str, int] = {
    "config.toml": _MEGABYTE, "status.json": _MEGABYTE, "metrics.prom": 4 * _MEGABYTE, ".lock": _MEGABYTE,
    "origins.json": 4 * _MEGABYTE, "provenance.json": 4 * _MEGABYTE, "summary.json": 16 * _MEGABYTE,
    "metrics.jsonl": 64 * _MEGABYTE, "clients.csv": 64 * _MEGABYTE, "failures.jsonl": 64 * _MEGABYTE,
}  # fmt: skip
"""The files that pages are made of, with the most bytes of each that are read."""
LISTED = ("config.toml", "status.json", "metrics.jsonl", ".lock")
"""The files of which the list of runs is made."""

Mark = tuple[tuple[int, int, int] | None, ...]
"""Time of the last change, size and number of each of several files; None for one that is not there."""


class GoneError(RunError):
    """There is no run of this name, or no longer."""


class Folders:
    """The runs in one folder.

    Args:
        root: the folder of runs. Links in it are not followed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, tuple[Mark, ListedRun]] = {}
        self._lock = threading.Lock()

    def find(self, name: str) -> Path:
        """Return the folder of run ``name``.

        Raises:
            GoneError: if there is no such run; a name that is no run's name, such as "..", is never looked up.
        """
        path = self.root / name
        if not (re.fullmatch(NAME, name) and _is_folder(path) and (path / "config.toml").exists()):
            raise GoneError(f"there is no run '{name:.200}'")
        return path

    def listed(self) -> list[ListedRun]:
        """Return the runs, the one that was last started or resumed first.

        Only those are read whose files have changed since the last time; a run with files that must not be read is
        "damaged".
        """
        begun = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                if re.fullmatch(NAME, entry.name) and entry.is_dir(follow_symlinks=False):
                    try:
                        begun.append(((self.root / entry.name / "config.toml").lstat().st_mtime, entry.name))
                    except OSError:  # no run, or deleted meanwhile
                        continue
        names = [name for _, name in sorted(begun, reverse=True)]
        with self._lock:
            self._known = {name: self._known[name] for name in names if name in self._known}
            return [self._listed(name) for name in names]

    def _listed(self, name: str) -> ListedRun:
        path = self.root / name
        try:
            mark = mark_of(path, LISTED)
        except RunError:
            return ListedRun(name, "damaged")
        known = self._known.get(name)
        if known is None or known[0] != mark:
            self._known[name] = known = mark, listed(path)
        # Whether the process of a run still lives, no file says.
        return replace(known[1], state=state_of(path)) if known[1].state in ("running", "stopped") else known[1]


def mark_of(run: Path, names: Iterable[str] = LIMITS) -> Mark:
    """Return what changes when one of a run's files does.

    Args:
        run: the run's folder.
        names: the files; keys of ``LIMITS``.

    Raises:
        RunError: if one is too large to be read, a link, or no file, such as a pipe that would never end.
    """
    return tuple(_mark(run / name, LIMITS[name]) for name in names)


def _mark(file: Path, limit: int) -> tuple[int, int, int] | None:
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{file.name} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "no file"
        raise RunError(f"{file.name} is {kind}; only files are read")
    if found.st_size > limit:
        raise RunError(f"{file.name} has {found.st_size / 1e6:.0f} MB; at most {limit / 1e6:.0f} MB are read")
    return found.st_mtime_ns, found.st_size, found.st_ino


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False
