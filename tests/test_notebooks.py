"""The notebooks: what is stored in them says nothing of a machine, and is what they show when they run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.installed import Installed
from tests.processes import ROOT
from tests.support import CACHE

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST = 600
"""Seconds that a cell may take, on a machine that is slow."""
OF_A_MACHINE = re.compile(r"(?<![\w.:/])/(?:root|home|Users|tmp|var|work|usr|opt|private|mnt)/|site-packages")


def _read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def _shown(cell: Any) -> list[tuple[str, ...]]:
    """Return the kinds of a cell's outputs: their types, and the forms that each is stored in."""
    return [(output.output_type, output.get("name", ""), *sorted(output.get("data", {}))) for output in cell.outputs]


def _texts(notebook: Any) -> list[str]:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [
        str(text)
        for output in outputs
        for kind, text in {"text": output.get("text", ""), **output.get("data", {})}.items()
        if not kind.startswith("image/")
    ]


def _run(path: Path, folder: Path, python: Path, variables: Mapping[str, str], where: Sequence[Path]) -> None:
    """Run a notebook in an empty folder, and compare the kinds of its outputs with those that are stored.

    Args:
        path: the notebook.
        folder: for the folder that it runs in, and a home.
        python: the interpreter that it runs with.
        variables: of its environment.
        where: folders of the machine, which no output may name.
    """
    home, work = folder / "home", folder / "work"
    (home / ".florilegium").mkdir(parents=True)
    work.mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (home / ".florilegium" / "cache").symlink_to(CACHE)
    stored, notebook = _read(path), _read(path)
    client = NotebookClient(
        notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(work)}},
        record_timing=False, coalesce_streams=True,
    )  # fmt: skip
    kernel = client.create_kernel_manager().kernel_spec
    kernel.argv[0] = str(python)
    client.execute(env={**variables, "HOME": str(home)})  # an error in a cell is raised here
    cells = [(a, b) for a, b in zip(stored.cells, notebook.cells, strict=True) if a.cell_type == "code"]
    for before, after in cells:
        assert _shown(before) == _shown(after), before.source
    texts = _texts(notebook)
    assert not [text for text in texts if OF_A_MACHINE.search(text) or any(str(one) in text for one in where)]
    assert not list(work.iterdir())  # all that it writes is in a temporary folder


@pytest.mark.simulation
def test_the_first_runs_in_a_checkout_and_shows_what_is_stored(tmp_path: Path) -> None:
    imported = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    _run(NOTEBOOKS[0], tmp_path, Path(sys.executable), {**os.environ, "PYTHONPATH": imported}, [ROOT])


@pytest.mark.simulation
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_the_wheel_and_shows_what_is_stored(path: Path, installed: Installed, tmp_path: Path) -> None:
    _run(path, tmp_path, installed.bin / "python", installed.environment, [ROOT, installed.home])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_traces_of_the_machine(path: Path) -> None:
    notebook = _read(path)
    assert not [text for text in _texts(notebook) if OF_A_MACHINE.search(text)]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.metadata for cell in notebook.cells)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert not [
        output for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "error"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    words = "".join(cell.source for cell in _read(path).cells if cell.cell_type == "markdown")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", words):
        assert "://" in target or (path.parent / target).exists(), target


@pytest.mark.parametrize("text", ["INFO: /tmp/x9/users: label", "['/root/a']", ".venv/lib/site-packages/tqdm/auto.py"])
def test_traces_are_recognised(text: str) -> None:
    assert OF_A_MACHINE.search(text)


@pytest.mark.parametrize("text", ["https://example.org/tmp/x", "devices/home/0/train.parquet", "12/15 accuracy"])
def test_addresses_and_relative_paths_are_no_traces(text: str) -> None:
    assert not OF_A_MACHINE.search(text)
