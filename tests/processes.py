"""Starting Flower's real processes on loopback, and ending them."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""
BIN = Path(sys.executable).parent
DEADLINE = 600
"""Seconds for a start or a run, on a machine that is slow; how soon something must end, a test says itself."""


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(home: Path) -> dict[str, str]:
    """Return an environment with a Flower home of its own and no installation at run time."""
    return os.environ | {
        "FLWR_HOME": str(home),
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": _ray_folder(),
    }


@cache
def _ray_folder() -> str:
    """Return a folder without a note of a Ray cluster that runs on this machine, which a new one would join.

    Its path is short, since Ray puts sockets there.
    """
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def kill_family(pid: int) -> None:
    """End a process and everything it started."""
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=10)


@contextmanager
def process(
    command: list[str], home: Path, log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` in an empty folder, with ``variables`` in its environment, until the block is left."""
    home.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        started = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=home,
            env=environment(home) | dict(variables or {}),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield started
    finally:
        kill_family(started.pid)


def wait_for_port(port: int, started: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until something listens on ``port``."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and started.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}: {log.read_text()[-2000:]}")


def flwr(arguments: list[str], home: Path) -> str:
    """Run the flwr command line and return what it printed."""
    done = subprocess.run(
        [str(BIN / "flwr"), *arguments], cwd=home, env=environment(home), capture_output=True, text=True,
        timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


__all__ = ["DEADLINE", "ROOT", "environment", "flwr", "free_port", "kill_family", "process", "wait_for_port"]
