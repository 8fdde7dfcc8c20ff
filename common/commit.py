"""The commit of a checkout. Uses the standard library alone: the build of a wheel loads this file by its path."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit_of(root: Path) -> str:
    """Return the commit of the git checkout whose top folder is ``root``, with "-dirty" if files differ from it.

    Returns "" if ``root`` is not the top folder of a checkout (an unpacked archive may lie in another one), or there is
    no git.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root.resolve():
            return ""
        return git("describe", "--always", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return ""
