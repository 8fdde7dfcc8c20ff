"""What an owner has withdrawn from: runs, apps, or all. Nothing of it is finished, and nothing of it begins again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from florilegium.common.errors import DataError
from florilegium.common.files import write_text
from florilegium.owner.denied import DeniedError

EVERYTHING = "everything"


@dataclass(frozen=True)
class Withdrawn:
    """Names of runs and hashes of apps.

    Attributes:
        runs, apps: names, and hashes.
        everything: whether nothing may run.
    """

    runs: frozenset[str] = field(default_factory=frozenset)
    apps: frozenset[str] = field(default_factory=frozenset)
    everything: bool = False

    def check(self, run: str, app: str) -> None:
        """Raise :class:`DeniedError` if this run, or its app, is withdrawn."""
        if self.everything:
            raise DeniedError("withdrawn", "the owner has withdrawn from all runs")
        if run and run in self.runs:
            raise DeniedError("withdrawn", f"the owner has withdrawn from run '{run}'")
        if app in self.apps:
            raise DeniedError("withdrawn", f"the owner has withdrawn from app {app}")


def read_withdrawn(path: Path) -> Withdrawn:
    """Return what was withdrawn.

    Raises:
        DataError: if the file is damaged.
    """
    if not path.exists():
        return Withdrawn()
    try:
        found = json.loads(path.read_bytes())
        return Withdrawn(
            frozenset(map(str, found["runs"])), frozenset(map(str, found["apps"])), bool(found[EVERYTHING])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it only if nothing was withdrawn") from error


def withdraw(path: Path, *, run: str = "", app: str = "", everything: bool = False) -> Withdrawn:
    """Add a run, an app or everything to what the owner has withdrawn from, and return all of it."""
    before = read_withdrawn(path)
    after = Withdrawn(
        before.runs | ({run} if run else set()), before.apps | ({app} if app else set()),
        before.everything or everything,
    )  # fmt: skip
    content = {"runs": sorted(after.runs), "apps": sorted(after.apps), EVERYTHING: after.everything}
    write_text(path, json.dumps(content) + "\n", private=True)
    return after
