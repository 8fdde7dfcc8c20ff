"""The Python examples of the documentation run as they stand, page by page, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.support import CACHE

PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```python" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_run(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    # A cell of a notebook may call itself by name; a script has one namespace for all of them.
    script = tmp_path / "example.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    (tmp_path / ".florilegium").mkdir()
    (tmp_path / ".florilegium" / "cache").symlink_to(CACHE)
    CACHE.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_the_page_on_robustness_names_tests_that_exist() -> None:
    named = re.findall(r"`(\S+\.py)::(test_\w+)`", (ROOT / "docs/results/robustness.md").read_text(encoding="utf-8"))
    assert named
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), f"{file}::{test}"
