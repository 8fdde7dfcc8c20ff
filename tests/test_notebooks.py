"""The notebooks: what is stored in them says nothing of a machine, and is what they show when they run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.processes import ROOT
from tests.support import CACHE

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONGEST = 600
"""Seconds that a cell may take, on a machine that is slow."""
ALWAYS = ("01-first-run",)
"""Notebooks that also run in the tests of every change."""
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


@pytest.mark.simulation
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in ALWAYS else pytest.mark.long) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    (home / ".florilegium").mkdir(parents=True)
    work.mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (home / ".florilegium" / "cache").symlink_to(CACHE)
    imported = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": imported}
    stored, notebook = _read(path), _read(path)
    client = NotebookClient(
        notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": str(work)}},
        record_timing=False, coalesce_streams=True,
    )  # fmt: skip
    client.execute(env=environment)  # an error in a cell is raised here
    cells = [(a, b) for a, b in zip(stored.cells, notebook.cells, strict=True) if a.cell_type == "code"]
    for before, after in cells:
        assert _shown(before) == _shown(after), before.source
    assert not [text for text in _texts(notebook) if OF_A_MACHINE.search(text) or str(ROOT) in text]
    assert not list(work.iterdir())  # all that it writes is in a temporary folder


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
