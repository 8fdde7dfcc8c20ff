"""This package itself: where it lies, its name and version, what it declares, and whether it has its research tools."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from florilegium.apps.origins.code import code_version, layer_folder
from florilegium.common.commit import commit_of
from florilegium.common.errors import ConfigurationError
from florilegium.common.memo import remembered
from florilegium.common.references import resolve


def checkout() -> Path | None:
    """Return the root of the checkout or unpacked app that this code runs from; None if it is installed."""
    root = layer_folder("apps").parent
    return root if (root / "pyproject.toml").is_file() else None


def project() -> dict[str, Any]:
    """Return name, version, description, licence and dependencies of this package, as ``[project]`` has them."""
    if root := checkout():
        own = _project_table(root)
        return {field: own[field] for field in ("name", "version", "description", "license", "dependencies")}
    installed = metadata.metadata("florilegium")
    required = [one for one in metadata.requires("florilegium") or [] if "extra ==" not in one]
    described = {
        "description": installed["Summary"], "license": installed["License-Expression"], "dependencies": required,
    }  # fmt: skip
    return {"name": "florilegium", "version": installed["Version"], **described}


def licence() -> str:
    """Return the text of this package's licence."""
    if root := checkout():
        return (root / "LICENSE").read_text(encoding="utf-8")
    return metadata.distribution("florilegium").read_text("licenses/LICENSE") or ""


def _project_table(root: Path) -> dict[str, Any]:
    """Return the table ``[project]`` of pyproject.toml."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text.partition("\n[tool.")[0])["project"]  # keys take ten times as long
    return table


def own_entry_points(group: str) -> dict[str, str]:
    """Return the entry points of a group that this package itself declares: the reference of each by its name."""
    if root := checkout():
        return dict(_project_table(root).get("entry-points", {}).get(group, {}))
    return {point.name: point.value for point in metadata.distribution("florilegium").entry_points.select(group=group)}


def version() -> str:
    """Return a line with the running package's name, version, commit (if known), and the hash of its code."""
    return version_line(project()["version"], commit(), code_version())


def version_line(release: str, commit: str, code: str) -> str:
    """Return a line with name, version, commit (if known), and the hash of the code."""
    return f"florilegium {release} ({f'commit {commit}, ' if commit else ''}code {code})"


@remembered(1)
def commit() -> str:
    """Return the commit of the checkout, the wheel, or the repository it was installed from; "" if unknown.

    It ends in "-dirty" where files of the checkout differ from it.
    """
    if root := checkout():
        return commit_of(root)
    built = layer_folder("apps") / "commit.txt"
    if built.is_file():
        return built.read_text(encoding="utf-8").strip()
    direct = metadata.distribution("florilegium").read_text("direct_url.json") or "{}"
    return str(json.loads(direct).get("vcs_info", {}).get("commit_id", ""))[:12]


RESEARCH = "florilegium.research"


def has_research() -> bool:
    """Return whether this package has its research tools: in a checkout, or installed from one as editable."""
    return find_spec(RESEARCH) is not None


def research(reference: str, what: str) -> Any:
    """Return the object behind a reference into ``florilegium.research``.

    Args:
        reference: ``florilegium.research.module:attribute``.
        what: what needs it, for the error message.

    Raises:
        ConfigurationError: if this is an installed package without them; the message says how to get them.
    """
    if not has_research():
        raise ConfigurationError(
            f"{what}: the wheel has no research tools (studies of papers, attacks, boards, the ledger); they come with "
            "a checkout: pip install -e /path/to/checkout"
        )
    return resolve(reference)
