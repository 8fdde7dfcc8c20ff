"""``florilegium new``: what it writes works as generated; the wheel's test installs it (test_package.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from florilegium.apps.cli.new import Kind, write_package
from florilegium.common.errors import ConfigurationError
from tests.processes import BIN, ROOT


def install(package: Path, site: Path) -> dict[str, str]:
    """Install a package into the folder ``site``; return an environment in which it is found."""
    pip = [str(BIN / "uv"), "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, "--python", sys.executable, str(package)], check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


PACKAGES: dict[Kind, str] = {"method": "fed-mine", "network": "tiny-net", "dataset": "own-blobs"}
RECIPE_TEST = """
import florilegium as fl


def test_the_recipe_runs_and_the_package_is_listed(tmp_path):
    run = fl.run({recipe!r}, rounds=1, runs_dir=tmp_path, progress=False)
    assert run.state == "completed"
    assert {name!r} in run.config.values()
    for table in (fl.methods(), fl.datasets()):
        if {name!r} in table.index:
            assert table.loc[{name!r}, "package"] == "{name} 0.1.0"
"""


@pytest.mark.long
def test_generated_packages_install_and_their_tests_pass(tmp_path: Path) -> None:
    """All in one process, as each would import PyTorch anew."""
    environment: dict[str, str] = {}
    for kind, name in PACKAGES.items():
        package = write_package(kind, name, tmp_path)
        environment = install(package, tmp_path / "site")
        test = RECIPE_TEST.format(recipe=str(package / "recipe.toml"), name=name)
        (package / "tests" / f"test_recipe_of_{kind}.py").write_text(test)
    options = ["-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    command = [sys.executable, "-m", "pytest", *options, *(str(tmp_path / name) for name in PACKAGES.values())]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


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
