"""Building a wheel: the commit it is made of is written beside the code, for ``florilegium --version``."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Copies the package, and writes ``apps/commit.txt`` where the sources are a git checkout."""

    def run(self) -> None:
        """Build, then write the commit."""
        if self.editable_mode:
            super().run()
            return
        built, root = Path(self.build_lib) / "florilegium", Path(__file__).resolve().parent.parent
        shutil.rmtree(built, ignore_errors=True)  # an earlier build may have left modules that are gone
        super().run()
        # The package cannot be imported while it is built.
        commit = runpy.run_path(str(root / "common" / "commit.py"))["commit_of"](root)
        if commit:
            (built / "apps" / "commit.txt").write_text(f"{commit}\n", encoding="utf-8")
