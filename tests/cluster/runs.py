"""Runs on the clusters of the tests, from outside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import processes
from tests.cluster.nodes import Nodes
from tests.support import CACHE

KEYS = {"method": "fedper", "num-clients": 12, "rounds": 12, "evaluate-every": 4, "cache-dir": str(CACHE)}
"""A method whose clients have states of their own, which a repeated message must find as they were."""


@contextmanager
def running(
    nodes: Nodes, folder: Path, workers: int, *, resume: bool = False, **keys: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Context of a run on the cluster, which the head's node has started or resumed, in ``folder``/run."""
    words = [word for key, value in {**KEYS, **keys}.items() for word in ("--set", f"{key}={value}")]
    what = ["resume", "run"] if resume else ["run", "--set", "run-name=run", *words]
    command = [
        sys.executable, "-m", "florilegium", *what, "--workers", str(workers), "--runs-dir", str(folder),
    ]  # fmt: skip
    variables = {"RAY_ADDRESS": nodes.address, "PYTHONPATH": str(processes.ROOT)}
    with processes.process(nodes.command(0, command), folder / "home", folder / "run.out", variables) as started:
        yield started


def wait(started: subprocess.Popen[bytes], folder: Path, until: Callable[[], object]) -> None:
    """Wait for something while a run goes on."""
    deadline = time.monotonic() + processes.DEADLINE
    while not until():
        assert started.poll() in (None, 0), (folder / "run.out").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def finished_round(folder: Path) -> int:
    """Return the round that ``folder``/run has finished."""
    try:
        return int(json.loads((folder / "run" / "status.json").read_text()).get("round", 0))
    except (OSError, ValueError):
        return 0


def log_of(folder: Path) -> str:
    """Return the log of ``folder``/run so far."""
    path = folder / "run" / "run.log"
    return path.read_text() if path.exists() else ""
