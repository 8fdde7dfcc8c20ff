"""Version and commit of the running package."""

from __future__ import annotations

import json
from importlib import metadata

from florilegium.apps.origins.app_folder import checkout, project
from florilegium.apps.origins.code import code_version, layer_folder
from florilegium.common.commit import commit_of
from florilegium.common.memo import remembered


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
