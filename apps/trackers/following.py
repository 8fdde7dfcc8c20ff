"""Send the lines of ``metrics.jsonl`` to a tracker, each figure once, however often the run is stopped and resumed.

What was sent is kept in ``trackers.json`` in the run's folder, by tracker and place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from florilegium.apps.methods.registry import table_of
from florilegium.apps.trackers.base import TrackedRun
from florilegium.apps.trackers.registry import TRACKERS
from florilegium.common.errors import RunError
from florilegium.common.files import write_text
from florilegium.common.settings import Value
from florilegium.strategies.folder.main_figure import read_main
from florilegium.strategies.folder.results import CLIENTS, SUMMARY, read_clients, read_summary
from florilegium.strategies.settings.plugged import own_tables

SENT = "trackers.json"
"""A file in a run's folder: what was sent, by tracker and place."""

_DESCRIPTION = ("config.toml", "provenance.json")
_RESULTS = (SUMMARY, CLIENTS)


def numbers(table: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of nested tables by flat names such as "seen/accuracy"; all other values are skipped."""
    flat: dict[str, float] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}{name}"] = value
    return flat


def tracked_run(path: Path, config: Mapping[str, Value], project: str) -> TrackedRun:
    """Return what identifies the run in ``path`` to a tracker; ``config`` without the tables that the run ignores."""
    tables = ("privacy", table_of(str(config["method"])), *own_tables(config))
    return TrackedRun(path, project, {key: value for key, value in config.items() if _table(key) in ("", *tables)})


def _table(key: str) -> str:
    table, dot, _ = key.partition(".")
    return table if dot else ""


@dataclass(frozen=True)
class _Sent:
    """What a place has of a run: the tracker's name for it, the last round, its figures' names, the state sent last."""

    own: str = ""
    round: int = -1
    names: list[str] = field(default_factory=list)
    state: str = ""


class Following:
    """Sends what a tracker does not have yet of a run.

    Args:
        name: the tracker's, as in key ``tracker``.
        run: the run.

    Attributes:
        place: where the figures go, in words.

    Raises:
        RunError: if ``trackers.json`` is damaged.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._name, self._run = name, run
        self._tracker = TRACKERS[name](run)
        self.place = self._tracker.place
        kept = _read(run.path).get(name, {}).get(self.place)
        self._sent = _Sent(**kept) if kept else _Sent()
        if self._sent.own and not self._tracker.knows(self._sent.own):
            self._sent = _Sent()
        self._open = False

    def send(self, lines: Iterable[Mapping[str, Any]]) -> int:
        """Send lines of ``metrics.jsonl``, in their order; return the number of rounds of which something was new."""
        count = 0
        for round, figures in self._new(lines):
            self._begin()
            self._tracker.log(round, figures)
            before = self._sent.names if round == self._sent.round else []
            self._note(round=round, names=[*before, *figures])
            count += 1
        return count

    def end(self, state: str) -> None:
        """Send the outcome and close the tracker's run; nothing happens if the tracker has all of it already."""
        if not self._open and (not self._sent.own or self._sent.state == state):
            return
        self._begin()
        path, completed = self._run.path, state == "completed"
        files = [path / name for name in (*_DESCRIPTION, *(_RESULTS if completed else ())) if (path / name).exists()]
        summary = numbers(read_summary(path)) if completed else {}
        self._tracker.end(state, summary, files, _of_clients(path) if completed else {})
        self._note(state=state)
        self._open = False

    def _new(self, lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
        for line in lines:
            figures = numbers({name: value for name, value in line.items() if name != "round"})
            if line["round"] == self._sent.round:
                figures = {name: value for name, value in figures.items() if name not in self._sent.names}
            if figures and line["round"] >= self._sent.round:
                yield line["round"], figures

    def _begin(self) -> None:
        if not self._open:
            self._note(own=self._tracker.begin(self._sent.own), state="running")
            self._open = True

    def _note(self, **changes: Any) -> None:
        self._sent = replace(self._sent, **changes)
        kept = _read(self._run.path)
        kept.setdefault(self._name, {})[self.place] = asdict(self._sent)
        write_text(self._run.path / SENT, json.dumps(kept, indent=2) + "\n")


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    file = path / SENT
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{file} is damaged: {error}; delete it, then everything is sent anew") from error


def _of_clients(path: Path) -> dict[str, list[float]]:
    """Return the main figures in a run's ``clients.csv`` by group of clients, as "seen/accuracy"; {} without any."""
    main = read_main(read_summary(path)).name
    groups: dict[str, list[float]] = {}
    for row in read_clients(path):
        if row.get(main):
            groups.setdefault(f"{row['group']}/{main}", []).append(float(row[main]))
    return groups
