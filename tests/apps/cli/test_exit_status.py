"""Exit statuses, as ``docs/commands.md`` lists them. That of a stopped run: ``tests/apps/engines/test_run.py``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from florilegium.common.errors import (
    BudgetSpentError,
    ConfigurationError,
    DataError,
    FileError,
    FlorilegiumError,
    RefusedError,
    RunError,
    StoppedError,
)
from tests.processes import ROOT

CALLS = {
    0: ["methods", "runs --runs-dir .", "--version", "run --help"],
    1: ["watch begun --runs-dir .", "predict nothing rows.npy"],
    2: [
        "run --set roundz=3", "run no-such-recipe", "compare fedavgg", "nonsense", "runs --no-such-option",
        "run --runs-dir . --set dataset=./missing", "runs --runs-dir ./missing", "keys no-such-key",
        "run --set rounds=-1",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("status", "words"), [(status, words) for status, calls in CALLS.items() for words in calls])
def test_commands_end_with_their_status(status: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text('method = "fedavg"\n')
    done = subprocess.run(
        [sys.executable, "-m", "florilegium", *words.split()], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stderr) == bool(status) or words.startswith("runs")


def test_every_error_has_one_of_the_listed_statuses() -> None:
    kinds = [ConfigurationError, DataError, RunError, FileError, StoppedError, BudgetSpentError, RefusedError]
    assert {*_all(FlorilegiumError)} >= {*kinds}
    listed = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert {kind.exit_status for kind in _all(FlorilegiumError)} | {0} == {int(status) for status in listed}
    assert [kind.exit_status for kind in kinds] == [2, 2, 1, 1, 130, 1, 1]


def _all(kind: type[FlorilegiumError]) -> list[type[FlorilegiumError]]:
    return [kind, *(one for below in kind.__subclasses__() for one in _all(below))]
