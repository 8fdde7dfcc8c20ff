"""The runs in a folder, the newest first, by a few lines of each, so that thousands are listed within seconds."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from florilegium.apps.settings.configuration import defaults
from florilegium.common.settings import Value, folder
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.main_figure import MainFigure, read_main
from florilegium.strategies.folder.metrics_file import is_evaluated
from florilegium.strategies.folder.run_folder import newest_runs

State = Literal["running", "completed", "stopped", "failed", "unknown", "damaged"]
"""How far a run is; "stopped": to be resumed; "unknown": it has no readable status; "damaged": nor other files."""

_LISTED = re.compile(r"^(?:method|dataset|seed) = .*$", re.MULTILINE)
"""Lines of ``config.toml``. To parse the whole file, a hundred keys, takes twenty times as long."""

_BLOCK = 8192
"""Bytes of a file that are read first, from its end."""


@dataclass(frozen=True)
class ListedRun:
    """A line of the list.

    Attributes:
        name: the run's id.
        state: how far it is.
        method, dataset, seed: keys of its configuration; None if the run is damaged.
        rounds: the last finished round; None if the run is damaged.
        figure: the name of the task's main figure.
        value: its mean over the seen clients in the last evaluation (shares as 0 to 1); None if there is none.
    """

    name: str
    state: State
    method: Value | None = None
    dataset: Value | None = None
    seed: Value | None = None
    rounds: int | None = None
    figure: str = MainFigure.name
    value: float | None = None


def list_folder(runs_dir: str) -> Iterator[ListedRun]:
    """Yield the runs in a folder, the newest first. A run is read when its turn comes."""
    for path in newest_runs(runs_dir):
        yield listed(path)


def listed(path: Path) -> ListedRun:
    """Return the line of the run in folder ``path``; a run with unreadable files is "damaged"."""
    try:
        common, _, _ = (path / "config.toml").read_text(encoding="utf-8").partition("\n[")
        keys = tomllib.loads("\n".join(_LISTED.findall(common)))
        rounds, last = _last_records(path)
        figure = read_main(_status(path)).name
        value = last.get("seen", {}).get(figure)
        return ListedRun(
            path.name, state_of(path), keys["method"], keys["dataset"], keys["seed"], rounds,
            figure, None if value is None else float(value),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ListedRun(path.name, "damaged")


def _status(path: Path) -> Mapping[str, Any]:
    try:
        return read_status(path)
    except (OSError, ValueError):
        return {}


def resume_command(path: Path) -> str:
    """Return the command that goes on with the run in ``path``, with ``--runs-dir`` if it is in another folder."""
    own, usual = path.absolute().parent, folder(str(defaults()["runs-dir"])).absolute()
    return f"florilegium resume {path.name}" + ("" if own == usual else f" --runs-dir {shlex.quote(str(own))}")


def state_of(path: Path) -> State:
    """Return how far the run in folder ``path`` is."""
    try:
        state = read_status(path)["state"]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return state if state in get_args(State) else "unknown"


def _last_records(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the last round in ``metrics.jsonl`` and the line of the last evaluation; 0 and {} if there is none."""
    rounds = None
    for line in _from_the_end(path / "metrics.jsonl"):
        record = dict(json.loads(line))
        rounds = int(record["round"]) if rounds is None else rounds
        if is_evaluated(record):
            return rounds, record
    return rounds or 0, {}


def _from_the_end(file: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file, the last one first; a torn one (by a power cut) is left out.

    No more is read than is asked for, since the files of long runs are large.
    """
    if not file.exists():
        return
    with file.open("rb") as content:
        at, size, torn, rest = content.seek(0, os.SEEK_END), _BLOCK, True, b""
        while at:
            size = min(at, 2 * size)
            at = content.seek(at - size)
            rest, *lines = (content.read(size) + rest).split(b"\n")
            if lines and torn:
                lines.pop()
                torn = False
            yield from reversed(lines)
        if rest and not torn:
            yield rest
