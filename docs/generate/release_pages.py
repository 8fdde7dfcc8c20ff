"""The generated part of ``docs/upgrading.md``: what differs between each release and this code, from its list of keys.

``docs/generate/releases`` has a file with all keys and defaults of each release. A new release adds its own.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import florilegium as fl
from docs.generate.method_pages import table
from florilegium.apps.methods.registry import EARLIER
from florilegium.apps.settings.configuration import defaults
from florilegium.common.settings import Value


def releases(root: Path) -> dict[str, dict[str, Value]]:
    """Return the keys and defaults of each release by its version, the newest first."""
    files = sorted((root / "docs" / "generate" / "releases").glob("*.toml"), reverse=True)
    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in files}


def upgrade_tables(root: Path) -> str:
    """Return the tables of ``docs/upgrading.md`` in Markdown."""
    now, parts = defaults(), []
    for version, then in releases(root).items():
        gone = [f"`{name}`" for name in then if name not in now]
        changed = [
            [f"`{name}`", f"`{json.dumps(was)}`", f"`{json.dumps(now[name])}`"]
            for name, was in then.items() if name in now and now[name] != was
        ]  # fmt: skip
        parts.append(
            f"### Keys since {version}\n\nOf its {len(then)} keys, {len(then) - len(gone)} are as they were"
            f"{', and these are gone: ' + ', '.join(gone) if gone else ''}. {len(now.keys() - then.keys())} are new.\n"
            + (f"\n{table(['default of', f'in {version}', 'now'], changed)}" if changed else "")
        )
    names = [[f"`fl.{name}`", "`fl.Messages`, `fl.Training`"] for name in fl._EARLIER]
    stated = [[f"`{name}`, stated by a class", f"`{instead}`"] for name, instead in EARLIER.items()]
    parts.append("### Names of Python that are gone\n\n" + table(["name", "now"], names + stated))
    return "\n".join(parts)
