"""A task of another package: one file and one line of configuration. The file is the example of docs/tasks.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.tasks.registry import TASKS
from tests.processes import ROOT
from tests.support import config

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the documentation's example where it can be imported; return its module."""
    found = re.search(r"<!-- begin example -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    (tmp_path / "counts.py").write_text(found[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "counts"


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedrep"])
def test_a_task_of_another_package(method: str, module: str, tmp_path: Path) -> None:
    keys = {"num-clients": 4, "partitioner": "iid", "rounds": 2, "local-epochs": 1, "learning-rate": 0.002}
    run_here(
        config(**{**keys, "method": method, "task": f"{module}:Counts", "run-name": "own", "runs-dir": str(tmp_path)}),
        tmp_path / "own",
    )
    figures = json.loads((tmp_path / "own" / "summary.json").read_text(encoding="utf-8"))["final"]["seen"]
    assert {"loss", "mae", "mae_pooled", "std", "worst_decile"} <= figures.keys()
    assert figures["worst_decile"] >= figures["mae"]
    assert "accuracy" not in figures


def test_the_page_lists_the_suites_tasks() -> None:
    table = PAGE.partition("### All tasks")[2].partition("###")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)[1:] == [*TASKS.own]
