"""End Flower's and Ray's processes of a command that has died, however it died; ``ray_simulation.py`` starts it.

    python -m florilegium.apps.engines.reaper HOME        with a pipe of the command's as standard input

The pipe closes when the command ends, also by SIGKILL, which leaves it no time to end anything itself. The processes
are known by their environment: ``FLWR_HOME`` is ``HOME/flwr``.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

_LAST_LOOK = 10.0
"""Seconds in which processes are looked for; one that is just starting another may leave it to be found later."""


def reap(home: Path) -> None:
    """Kill all processes of ``home``, and delete it."""
    deadline = time.monotonic() + _LAST_LOOK
    while time.monotonic() < deadline and (found := [*_processes(home)]):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
    shutil.rmtree(home, ignore_errors=True)


def _processes(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it ended, or is another user's
            if process.environ().get("FLWR_HOME") == str(home / "flwr") and process.status() != psutil.STATUS_ZOMBIE:
                yield process


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reap(Path(sys.argv[1]))
