"""The reaper ends the processes of its home folder, and no others, when the command that started it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.processes import ROOT


def test_it_ends_what_the_command_has_started(tmp_path: Path) -> None:
    home = tmp_path / "flor-1"
    (home / "flwr").mkdir(parents=True)
    sleepers = [
        subprocess.Popen(["sleep", "300"], env={**os.environ, "FLWR_HOME": str(folder)})
        for folder in (home / "flwr", tmp_path / "flor-2" / "flwr")
    ]
    reaper = subprocess.Popen(
        [sys.executable, "-P", "-m", "florilegium.apps.engines.reaper", str(home)],
        stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert all(process.poll() is None for process in (*sleepers, reaper))
        assert reaper.stdin is not None
        reaper.stdin.close()
        assert sleepers[0].wait(20) < 0
        assert reaper.wait(20) == 0
        assert not home.exists()
        assert sleepers[1].poll() is None
    finally:
        for process in (*sleepers, reaper):
            process.kill()
            process.wait()
