"""``florilegium new``: what it writes works as generated; the wheel's test installs it (test_package.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from florilegium.apps.scaffold import Kind, write_package
from florilegium.common.errors import ConfigurationError
from tests.processes import BIN, ROOT


def install(package: Path, site: Path) -> dict[str, str]:
    """Install a package into the folder ``site``; return an environment in which it is found."""
    pip = [str(BIN / "uv"), "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, "--python", sys.executable, str(package)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


@pytest.mark.parametrize(("kind", "name"), [("method", "fed-mine"), ("network", "tiny-net"), ("dataset", "own-blobs")])
def test_a_generated_package_installs_and_its_tests_pass(kind: Kind, name: str, tmp_path: Path) -> None:
    package = write_package(kind, name, tmp_path)
    environment = install(package, tmp_path / "site")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(package / "tests")]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    code = (
        f"import florilegium as fl; r = fl.run('recipe.toml', rounds=1, runs_dir={str(tmp_path)!r}, progress=False); "
        f"print(r.state, '{name}' in r.config.values())"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["completed", "True"], done.stderr
    table = "methods" if kind == "method" else "datasets" if kind == "dataset" else ""
    if table:
        listed = [sys.executable, "-m", "florilegium", table]
        shown = subprocess.run(listed, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
        assert next(line for line in shown.splitlines() if name in line).count(f"{name} 0.1.0") == 1


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("method", "Fed Mine", "'Fed Mine' is no name for a package"),
        ("method", "../evil", "is no name for a package"),
        ("method", "fedavg", "there is already a method 'fedavg'"),
        ("network", "mlp", "there is already a network 'mlp'"),
    ],
)
def test_unsuitable_names_are_refused(kind: Kind, name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        write_package(kind, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_package("method", "fed-mine", tmp_path)
    with pytest.raises(ConfigurationError, match="exists already"):
        write_package("method", "fed-mine", tmp_path)
