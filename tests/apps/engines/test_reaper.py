"""The reaper ends the processes of its home folder, and no others, when the command that started it is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from florilegium.apps.engines.reaper import reap
from tests.processes import ROOT, kill_family

RENAMED = """
import subprocess, sys, time
wait = "import os, time; print(os.getpid(), flush=True); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", wait], env={})
if sys.argv[1] == "stays":
    time.sleep(300)
"""
"""A process with a child that has lost its environment, as Ray's agents write their names over theirs."""


@pytest.mark.parametrize("parent", ["stays", "is gone"])
def test_it_ends_processes_without_their_environment(parent: str, tmp_path: Path) -> None:
    """The child of a process of the command, or an orphan in the session that one has led; nobody else's."""
    home = tmp_path / "flor-1"
    (home / "flwr").mkdir(parents=True)
    own = {**os.environ, "FLWR_HOME": str(home / "flwr")}
    leads = ["sh", "-c", f'{sys.executable} -c "$0" {parent.split()[0]} & sleep 300', RENAMED]
    leader = subprocess.Popen(leads, env=own, stdout=subprocess.PIPE, start_new_session=True, text=True)
    other = subprocess.Popen(["sleep", "300"], env={}, start_new_session=True)
    beside = subprocess.Popen(["sleep", "300"], env=own)  # in the session of this test, as in a user's terminal
    try:
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        assert "FLWR_HOME" not in child.environ()
        if parent == "is gone":
            while child.ppid() != 1:
                time.sleep(0.05)
        reap(home)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        assert leader.poll() is not None
        assert beside.poll() is not None
        assert other.poll() is None
    finally:
        for process in (leader, other, beside):
            kill_family(process.pid)


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
