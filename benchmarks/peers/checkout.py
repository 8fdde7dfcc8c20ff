"""The source of a package that is on no index: the files of one commit, from GitHub or from a clone on this machine."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

CLONES = "PEERS_CHECKOUTS"
"""Environment variable: a folder in which ``OWNER+NAME/repo`` is a clone of OWNER/NAME, bare or not; unset: GitHub."""
SITE = "https://github.com"
FILES = ("*.py", "*.yaml")
"""What is taken of a commit, wherever it lies: repositories have pictures and data sets, too."""
LONGEST = 600.0
"""Seconds after which a command is given up."""


@dataclass(frozen=True)
class Checkout:
    """Where a package's source is.

    Attributes:
        repository: on GitHub, "OWNER/NAME".
        commit: its name of 40 hexadecimal digits.
        folder: the folder in it from which the package's modules are imported; "": the topmost.
    """

    repository: str
    commit: str
    folder: str = ""

    @property
    def notes(self) -> str:
        """The repository and the commit's short name."""
        return f"{self.repository} {self.commit[:7]}"

    def write(self, folder: Path) -> None:
        """Write the commit's :data:`FILES` to a new folder.

        Raises:
            RuntimeError: if git does not find the repository or the commit; with its words.
            OSError: if git is missing, or a file cannot be written.
            subprocess.TimeoutExpired: after :data:`LONGEST` seconds.
        """
        with tempfile.TemporaryDirectory() as own:
            if clones := os.environ.get(CLONES):
                repository = Path(clones) / self.repository.replace("/", "+") / "repo"
            else:
                repository = Path(own)
                _git("init", "--quiet", "--bare", own)
                _git("-C", own, "fetch", "--quiet", "--depth", "1", f"{SITE}/{self.repository}", self.commit)
            archive = _git("-C", str(repository), "archive", "--format=tar", self.commit, "--", *FILES)
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")

    def make_importable(self, folder: Path, environment: Path) -> None:
        """Let an environment of Python, a folder, import the modules of the checkout that is in ``folder``."""
        (packages,) = environment.glob("lib/python3*/site-packages")
        (packages / "checkout.pth").write_text(f"{folder / self.folder}\n", encoding="utf-8")


def _git(*words: str) -> bytes:
    variables = os.environ | {"GIT_TERMINAL_PROMPT": "0"}  # a repository that is not public fails instead of asking
    done = subprocess.run(["git", *words], env=variables, capture_output=True, timeout=LONGEST, check=False)
    if done.returncode:
        raise RuntimeError(" ".join(done.stderr.decode(errors="replace").split()))
    return done.stdout
