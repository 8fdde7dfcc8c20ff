"""In words: which command and version made a board's runs, when and where."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from florilegium.apps.origins.package import version_line
from florilegium.apps.reports.pools import ranges
from florilegium.common.settings import Value
from florilegium.strategies.folder.attempts import read_provenance


def options_of(seeds: Sequence[int], overrides: Mapping[str, Value]) -> list[str]:
    """Return the options of the command that makes a board, without the folder of its runs."""
    options = ["--seeds", ranges(seeds).replace(" ", "")]
    for key, value in overrides.items():
        if key != "runs-dir":
            options += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return options


def made(runs: Sequence[Path], recipe: str, options: Sequence[str]) -> str:
    """Return a sentence with the command, versions, days and machines of the runs in these folders, at least one."""
    parts = [read_provenance(run)[-1] for run in runs]
    days = sorted(part["start"][:10] for part in parts)
    versions = dict.fromkeys(_version(part["versions"]) for part in parts)
    machines = dict.fromkeys(
        f"{part['machine'].get('processor')}, {part['workers']} worker processes" for part in parts
    )
    return (
        f"Made on {' to '.join(dict.fromkeys((days[0], days[-1])))} by "
        f"`{shlex.join(['florilegium', 'board', recipe, *options])}` ({'; '.join([*versions, *machines])})."
    )


def _version(versions: Mapping[str, Any]) -> str:
    """Return a line with the package's version in a part of a run's provenance."""
    return version_line(versions["florilegium"], versions["commit"] + "-dirty" * versions["modified"], versions["code"])
