"""Environments in which other versions of packages lie over those of this one.

Such an environment has what the resolver chooses for ``pyproject.toml`` with the wanted versions, and keeps this
environment's versions wherever they fit. Only packages whose version differs are installed in it; all others are found
in this environment, whose folder follows on its path. So it takes seconds to build, and its packages fit together as
those of a user do who asks for these versions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.processes import ROOT

SCRIPTS = """
import sys
from importlib.metadata import entry_points
from pathlib import Path

for point in entry_points(group="console_scripts"):
    script = Path(sys.executable).parent / point.name
    if not script.exists():
        lines = ["#!" + sys.executable, "import sys", f"from {point.module} import {point.attr}", ""]
        script.write_text("\\n".join([*lines, 'if __name__ == "__main__":', f"    sys.exit({point.attr}())", ""]))
        script.chmod(0o755)
"""
"""Writes the programs of packages that were not installed anew, for the environment that it runs in."""


def _uv(*words: str | Path, variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "uv", *map(str, words)], cwd=ROOT, env=variables, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _pins(text: str) -> dict[str, str]:
    return dict(line.strip().split("==") for line in text.splitlines() if "==" in line)


def resolve(folder: Path, *options: str, wanted: Mapping[str, str], extras: Sequence[str] = ("dev",)) -> dict[str, str]:
    """Return the version of every package that the resolver chooses.

    Args:
        folder: for files of the resolver.
        options: more options of ``uv pip compile``.
        wanted: versions by package; all others stay as they are here where that fits.
        extras: optional dependencies that are resolved too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    here = _uv("pip", "freeze", "--python", sys.executable, "--exclude-editable")
    (folder / "chosen.txt").write_text(here)  # the resolver prefers what stands in its output file
    (folder / "wanted.txt").write_text("".join(f"{name}=={version}\n" for name, version in wanted.items()))
    _uv(
        "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python", sys.executable,
        *(word for extra in extras for word in ("--extra", extra)), "--constraint", folder / "wanted.txt",
        *options, ROOT / "pyproject.toml", "--output-file", folder / "chosen.txt",
    )  # fmt: skip
    return _pins((folder / "chosen.txt").read_text())


@dataclass(frozen=True)
class Environment:
    """An environment, and what was installed in it: versions by package."""

    folder: Path
    installed: Mapping[str, str]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def run(self, *words: str | Path, seconds: float = 3600) -> subprocess.CompletedProcess[str]:
        """Run its interpreter with arguments, in the checkout, with its programs first on the path."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHONPATH"))}
        variables["PATH"] = f"{self.python.parent}{os.pathsep}{variables.get('PATH', '')}"
        return subprocess.run(
            [str(self.python), *map(str, words)], cwd=ROOT, env=variables, capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Return the version of each package that its interpreter finds."""
        code = "import sys\nfrom importlib.metadata import version\nprint(*map(version, sys.argv[1:]))"
        return dict(zip(packages, self.run("-c", code, *packages).stdout.split(), strict=True))


def interpreters() -> str:
    """Return a value of PATH on which the resolver finds pyenv's interpreters, too."""
    found = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin"))
    return os.pathsep.join([*map(str, found), os.environ.get("PATH", "")])


def build_anew(folder: Path, python: str) -> Environment:
    """Build an environment of another version of Python, such as "3.13", with everything installed anew."""
    variables = os.environ | {"PATH": interpreters()}
    _uv("venv", "--quiet", "--no-project", "--python", python, folder, variables=variables)
    built = Environment(folder, {})
    _uv("pip", "install", "--quiet", "--python", built.python, f"{ROOT}[dev]")
    _uv("pip", "uninstall", "--quiet", "--python", built.python, "florilegium")  # the checkout's code is tested
    own = built.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    (Path(own) / "checkout.pth").write_text(f"{ROOT}\n")
    return built


def build(folder: Path, chosen: Mapping[str, str]) -> Environment:
    """Build an environment with the chosen versions in a new folder."""
    here = _pins(_uv("pip", "freeze", "--python", sys.executable, "--exclude-editable"))
    different = {name: version for name, version in chosen.items() if name != "uv" and here.get(name) != version}
    _uv("venv", "--quiet", "--no-project", "--python", sys.executable, folder)
    built = Environment(folder, different)
    if different:
        pins = [f"{name}=={version}" for name, version in different.items()]
        _uv("pip", "install", "--quiet", "--no-deps", "--python", built.python, *pins)
    own = built.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    (Path(own) / "below.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    done = built.run("-c", SCRIPTS)
    assert done.returncode == 0, done.stderr
    return built
