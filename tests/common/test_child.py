"""Child processes end with their parents."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import DEADLINE, ROOT, kill_family

CHILD = """
import os, sys, time
from florilegium.common.child import ended_with_the_parent
try:
    with ended_with_the_parent(0.05):
        print(os.getpid(), flush=True)
        time.sleep(300)
except KeyboardInterrupt:
    open(sys.argv[1], "w").write("interrupted")
"""


def _has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended; what adopts orphans may take its time to collect it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_is_interrupted_when_its_parent_ends(way: signal.Signals, handler: str, tmp_path: Path) -> None:
    """Also in the background of a script, where SIGINT is ignored, and so it is in what is started there."""
    said = tmp_path / "said"
    script = f"""
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.{handler})
subprocess.run([sys.executable, '-c', *sys.argv[1:]])
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script, CHILD, str(said)], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.2)
        assert child.is_running()
        parent.send_signal(way)
        parent.wait(10)
        deadline = time.monotonic() + DEADLINE
        while not _has_ended(child):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert said.read_text() == "interrupted"
    finally:
        kill_family(parent.pid)
