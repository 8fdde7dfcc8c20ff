"""Imports point one way: research, ui → apps → strategies → clients → models, partitions, privacy → tasks → common."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.processes import ROOT

ALLOWED = {
    "common": set[str](),
    "tasks": {"common"},
    "models": {"common"},
    "partitions": {"common", "tasks"},
    "privacy": {"common"},
    "clients": {"common", "tasks", "models", "partitions", "privacy"},
    "owner": {"common", "privacy", "clients"},
    "strategies": {"common", "tasks", "models", "partitions", "privacy", "clients"},
    "cluster": {"common", "clients", "strategies"},
    "apps": {"common", "tasks", "models", "partitions", "privacy", "clients", "owner", "strategies", "cluster"},
    "ui": {"common", "partitions", "strategies", "apps"},
    "research": {"common", "tasks", "models", "partitions", "privacy", "clients", "strategies", "apps"},
}
FLOORS = {
    "apps": (
        "methods", "settings", "trackers", "origins", "assembly", "engines", "runs", "reports", "devices", "tuning",
        "sweeps", "api", "cli",
    ),
    "clients": ("hyper", "attacks", "core", "layers", "node", "clustering", "families", "statistics"),
    "models": ("statistics",),
    "owner": ("confine",),
    "partitions": ("partitioners", "sources"),
    "privacy": ("secure_sum",),
    "research": ("attacks", "board", "ledger", "studies"),
    "strategies": (
        "robust", "settings", "folder", "exchange", "layers", "core", "clustering", "families", "statistics",
    ),
    "tasks": ("metrics",),
}  # fmt: skip
"""The rooms of a layer, which are its folders, from the lowest up: a room imports only rooms below it."""
FLOWER_FREE = ("common", "tasks", "models", "privacy")


@cache
def _modules(path: Path) -> set[str]:
    """Return the dotted names of all modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _imports(path: Path) -> set[str]:
    """Return what a file imports: layers of this package by their own name, other packages by theirs."""
    return {name.removeprefix("florilegium.").partition(".")[0] for name in _modules(path)}


def test_layers_are_imported_through_the_package_alone() -> None:
    """A module imported under two names exists twice, with two registries and two sets of classes."""
    for folder in (*ALLOWED, "florilegium", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            bare = {name for name in _modules(path) if name.partition(".")[0] in ALLOWED}
            assert not bare, f"{path}: import florilegium.{min(bare)} instead"


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


def test_every_room_has_a_floor() -> None:
    rooms = {layer: {path.parent.name for path in (ROOT / layer).glob("*/__init__.py")} for layer in ALLOWED}
    assert {layer: {*own} for layer, own in FLOORS.items()} == {layer: own for layer, own in rooms.items() if own}


@pytest.mark.parametrize(("layer", "room"), [(layer, room) for layer, own in FLOORS.items() for room in own])
def test_rooms_import_only_lower_rooms(layer: str, room: str) -> None:
    """Also inside functions, so that there is no circle of rooms."""
    floors, prefix = FLOORS[layer], f"florilegium.{layer}."
    higher = {*floors[floors.index(room) + 1 :]}
    for path in (ROOT / layer / room).rglob("*.py"):
        imported = {name.removeprefix(prefix).partition(".")[0] for name in _modules(path) if name.startswith(prefix)}
        assert not imported & higher, f"{path.relative_to(ROOT)} imports {imported & higher}, above {room}"
        assert layer != "apps" or not imported & {"client_app", "server_app"}, path


@pytest.mark.parametrize("layer", ALLOWED)
def test_no_modules_import_each_other(layer: str) -> None:
    """Also inside functions. A circle is an error of :class:`graphlib.TopologicalSorter`, which names its modules."""
    paths = {".".join(("florilegium", *path.relative_to(ROOT).with_suffix("").parts)): path
             for path in (ROOT / layer).rglob("*.py") if path.stem != "__init__"}  # fmt: skip
    imports = {
        module: {own for name in _modules(path) for own in (name, name.rpartition(".")[0]) if own in paths}
        for module, path in paths.items()
    }
    assert {*TopologicalSorter(imports).static_order()} == {*paths}


def test_processes_start_without_what_few_runs_need() -> None:
    """On a device every message starts a process."""
    heavy = {
        "scipy", "sklearn", "dp_accounting", "opacus", "datasets", "flwr_datasets", "matplotlib", "pandas", "ray",
        "fastapi",
    }  # fmt: skip
    sides = ("apps.client_app", "clients.fedavg"), ("apps.server_app", "strategies.fedavg", "apps.engines.process")
    imports = [", ".join(f"florilegium.{module}" for module in side) for side in sides]
    code = "import sys" + "".join(f"\nimport {side}\nprint(*({heavy!r} & sys.modules.keys()))" for side in imports)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    client, server = done.stdout.splitlines()
    assert not client
    assert not server
