"""End Flower's and Ray's processes of a command that has died, however it died; ``ray_simulation.py`` starts it.

    python -m florilegium.apps.engines.reaper HOME        with a pipe of the command's as standard input

The pipe closes when the command ends, also by SIGKILL, which leaves it no time to end anything itself. The processes
are known by their environment, where ``FLWR_HOME`` is ``HOME/flwr``. Ray's agents write their names over it; they are
known as descendants of the others, and as members of their sessions.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import psutil

_LAST_LOOK = 10.0
"""Seconds in which processes are looked for; one that is just starting another may leave it to be found later."""


def reap(home: Path) -> None:
    """Kill all processes of ``home``, and delete it."""
    deadline, sessions = time.monotonic() + _LAST_LOOK, set[int]()
    while time.monotonic() < deadline and (found := _processes(home, sessions)):
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
    shutil.rmtree(home, ignore_errors=True)


def _processes(home: Path, sessions: set[int]) -> list[psutil.Process]:
    """Return the processes that live.

    Args:
        home: the folder.
        sessions: the sessions that were led by one of them before; new ones are added. In another session, such as the
            user's terminal, there may be one of them beside others.
    """
    known: dict[int, psutil.Process] = {}
    members: list[tuple[int, psutil.Process]] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it ended, or is another user's
            members.append((os.getsid(process.pid), process))
            if process.environ().get("FLWR_HOME") == str(home / "flwr"):
                known[process.pid] = process
    for process in [*known.values()]:
        with contextlib.suppress(psutil.Error):
            known |= {child.pid: child for child in process.children(recursive=True)}
    sessions |= {session for session, process in members if process.pid == session and session in known}
    known |= {process.pid: process for session, process in members if session in sessions}
    return [process for process in known.values() if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


if __name__ == "__main__":
    sys.stdin.buffer.read()
    reap(Path(sys.argv[1]))
