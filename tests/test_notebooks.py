"""The notebooks: their stored outputs are whole and say nothing of a machine; they run as they stand (long)."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.processes import ROOT
from tests.support import CACHE

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_whole(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= len(code) / 2
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    text = path.read_text(encoding="utf-8")
    assert not [folder for folder in ("/root/", "/home/", "/work/", "/tmp/") if folder in text]


@pytest.mark.simulation
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".florilegium").mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / ".florilegium" / "cache").symlink_to(CACHE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
