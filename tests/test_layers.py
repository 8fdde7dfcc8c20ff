"""Imports point one way: apps → strategies → clients → {models, partitions, privacy} → common."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from apps.settings import ROOT

ALLOWED = {
    "common": set[str](),
    "models": {"common"},
    "partitions": {"common"},
    "privacy": {"common"},
    "clients": {"common", "models", "partitions", "privacy"},
    "strategies": {"common", "models", "partitions", "privacy", "clients"},
    "apps": {"common", "models", "partitions", "privacy", "clients", "strategies"},
}
FLOWER_FREE = ("common", "models", "privacy")


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_lower_layers(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        imported = _imports(path)
        forbidden = (imported & ALLOWED.keys()) - ALLOWED[package] - {package}
        assert not forbidden, f"{path.name} imports {forbidden}"
        if package in FLOWER_FREE:
            assert not {"flwr", "flwr_datasets", "ray"} & imported, path.name


@pytest.mark.parametrize("method", [path.stem for path in sorted((ROOT / "strategies").glob("*.py"))])
def test_a_client_of_the_same_name_never_knows_its_strategy(method: str) -> None:
    twin = ROOT / "clients" / f"{method}.py"
    if twin.exists():
        assert "strategies" not in _imports(twin)


@pytest.mark.parametrize("modules", ["apps.client_app, clients.fedavg", "apps.server_app, strategies.fedavg"])
def test_processes_start_without_what_few_runs_need(modules: str) -> None:
    """On a device every message starts a process."""
    heavy = {"scipy", "sklearn", "dp_accounting", "opacus", "datasets", "flwr_datasets", "matplotlib", "pandas", "ray"}
    code = f"import sys, {modules}; print(*({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not done.stdout.split()
