"""A run is carried out by one process at a time, and is not "running" once that has gone."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from florilegium.common.errors import ConfigurationError, FileError
from florilegium.strategies.folder.claim import DIED, claimed, is_carried_out, read_status
from tests.processes import ROOT

HOLD = """
import sys
from pathlib import Path
from florilegium.strategies.folder.claim import claimed
with claimed(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "status.json").write_text('{"state": "running", "round": 3}')
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_and_a_killed_one_is_noticed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(run)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_carried_out(run)
    assert read_status(run)["state"] == "running"
    with pytest.raises(ConfigurationError, match="run 'run' is being carried out by another"), claimed(run):
        pass
    holder.kill()
    holder.wait()
    assert not is_carried_out(run)
    assert read_status(run) == {"state": "stopped", "round": 3, "error": DIED}
    with claimed(run):
        assert read_status(run)["state"] == "running"


def test_who_looks_writes_nothing_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    """Several look at once: while one holds the shared lock, another still sees that no process carries the run out."""
    lock = tmp_path / ".lock"
    lock.write_text("kept")
    with lock.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not is_carried_out(tmp_path)
    assert lock.read_text() == "kept"


def test_a_run_of_an_earlier_version_is_what_its_status_says(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"state": "running"}), encoding="utf-8")
    assert not is_carried_out(tmp_path)
    assert read_status(tmp_path) == {"state": "running"}


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    message = r"runs-dir: .*/file/run cannot be made \(Not a directory\)"
    with pytest.raises(FileError, match=message), claimed(tmp_path / "file" / "run"):
        pass
