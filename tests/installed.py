"""The wheel, built and installed in an environment of its own, with hostile neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tests import processes
from tests.processes import BIN, ROOT


def build_wheel(folder: Path) -> Path:
    """Build the wheel as ``uv build --wheel`` does, with this environment's setuptools."""
    build = ["build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
    subprocess.run([str(BIN / "uv"), *build, str(ROOT)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


class Installed:
    """The wheel in an environment of its own that shares the dependencies of this one.

    Attributes:
        folder: where commands run: it has an ``apps``, a ``models`` and a ``common`` of its own.
    """

    def __init__(self, home: Path, wheel: Path) -> None:
        self.bin, self.folder = home / "venv" / "bin", home / "work"
        self.home = home
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
        python = self.bin / "python"
        pip = [str(BIN / "uv"), "pip", "install", "--quiet", "--no-deps", "--python", str(python), str(wheel)]
        subprocess.run(pip, check=True)
        site = next((home / "venv").glob("lib/python*/site-packages"))
        # A path in a .pth file is searched, but its own .pth files, the checkout's editable install, are not read.
        (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
        for program in BIN.iterdir():
            if program.name.startswith(("flwr", "flower", "ray")) and not (self.bin / program.name).exists():
                _, _, body = program.read_text(encoding="utf-8").partition("\n")
                (self.bin / program.name).write_text(f"#!{python}\n{body}", encoding="utf-8")
                (self.bin / program.name).chmod(0o755)
        for folder in (self.folder, home / "elsewhere"):
            for name in ("apps", "models", "common", "clients", "strategies"):
                (folder / name).mkdir(parents=True)
                (folder / name / "__init__.py").write_text("raise ImportError('the wrong package')\n")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its programs, with the other hostile folder on PYTHONPATH."""
        return processes.environment(self.home / "flwr") | {
            "PYTHONPATH": str(self.home / "elsewhere"), "PATH": f"{self.bin}{os.pathsep}/usr/bin:/bin",
        }  # fmt: skip

    def run(self, *command: str, variables: Mapping[str, str] | None = None) -> str:
        """Run an installed program in the hostile folder and return what it printed."""
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=self.folder, env=self.environment | dict(variables or {}),
            capture_output=True, text=True, timeout=processes.DEADLINE, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
