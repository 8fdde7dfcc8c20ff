"""Building a wheel: the commit it is made of is written beside the code, for ``florilegium --version``."""

from __future__ import annotations

import subprocess
from pathlib import Path

from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Copies the package, and writes ``apps/commit.txt`` where the sources are a git checkout."""

    def run(self) -> None:
        """Build, then write the commit."""
        super().run()
        if self.editable_mode:
            return
        command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        target = Path(self.build_lib) / "florilegium" / "apps" / "commit.txt"
        if done.returncode == 0 and target.parent.is_dir():
            target.write_text(done.stdout, encoding="utf-8")
