"""Processor time and memory of rounds with a million enrolled clients, beside rounds with a thousand.

Two runs are begun; then they carry out their rounds in turn, as many clients of one as of the other, so that other work
of the machine affects both alike. Run as a script, the module is one of them: it carries out a round for each line that
it reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.settings.configuration import complete
from florilegium.common.settings import Value

FEW, MANY, COHORT = 1_000, 1_000_000, 10_000
TURNS = 4
"""Turns of 10,000 clients of each run, after one that is not counted."""


@dataclass(frozen=True)
class Measured:
    """What a run of a million clients has cost.

    Attributes:
        few, many: microseconds of processor time of a client in a round, of 1,000 and of 1,000,000 enrolled.
        server, worker: memory of the server's process and of the largest worker's, in GB; what they share counts once.
        clients: number of clients that have a state.
        entries: files and folders of states for each of them; 0 if there are none.
    """

    few: float
    many: float
    server: float
    worker: float
    clients: int
    entries: float

    @property
    def ratio(self) -> float:
        """Processor time of a round for each client, relative to that with 1,000 clients."""
        return self.many / self.few


def measure(method: str, workers: int, folder: Path) -> Measured:
    """Return what rounds of a method cost with 1,000 and with 1,000,000 enrolled clients.

    Args:
        method: the method.
        workers: number of worker processes, more than one.
        folder: holds the cache, and the folders of the runs.
    """
    with ExitStack() as ends:
        runs = {count: _Turn(count, method, workers, folder, ends) for count in (FEW, MANY)}
        for _ in range(TURNS + 1):
            for run in runs.values():
                run.take()
        states = folder / f"{method}-{MANY}" / "clients"
        clients = {path.name.partition("-state-")[0] for path in states.rglob("*-state-*.safetensors")}
        entries = len([*states.rglob("*")]) / len(clients) if clients else 0.0
        few, many = (float(np.median(run.microseconds[1:])) for run in runs.values())
        return Measured(few, many, *runs[MANY].memory, len(clients), entries)


class _Turn:
    """A run that carries out 10,000 clients' work in each turn.

    Attributes:
        microseconds: of processor time, for each client, in the turns so far.
        memory: of the server and of the largest worker so far, in GB.
    """

    def __init__(self, count: int, method: str, workers: int, folder: Path, ends: ExitStack) -> None:
        self._rounds = COHORT // min(count, COHORT)
        keys: dict[str, Value] = {
            "method": method, "dataset": f"benchmarks.natural:people_{count}", "task": "binary",
            "partitioner": "natural", "num-clients": 0, "model": "linear", "cohort-size": min(count, COHORT),
            "rounds": self._rounds * (TURNS + 2), "local-steps": 1, "batch-size": 4, "evaluate-clients": 100,
            "evaluate-every": 0, "cache-dir": str(folder / "cache"), "run-name": f"{method}-{count}",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(workers), json.dumps(keys)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        ends.callback(self._process.wait)
        ends.callback(self._process.kill)
        self.microseconds: list[float] = []
        self.memory = (0.0, 0.0)
        self._seconds = self._read()

    def take(self) -> None:
        """Let the run carry out 10,000 clients' work."""
        for _ in range(self._rounds):
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            seconds = self._read()
        self.microseconds.append(1e6 * (seconds - self._seconds) / COHORT)
        self._seconds = seconds

    def _read(self) -> float:
        """Return the processor time that the run's processes say they have used so far."""
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        self.memory = cast(
            tuple[float, float], tuple(max(pair) for pair in zip(self.memory, told["memory"], strict=True))
        )
        return float(told["seconds"])


class _Waiting:
    """Follows a run: after each round it tells its cost, and waits for a line to go on."""

    interrupted = False

    def __init__(self, out: int) -> None:
        self._out = out

    def recorded(self, line: Mapping[str, Any]) -> bool:
        """Let the run go on."""
        return False

    def progressed(self, status: Mapping[str, Any]) -> None:
        """Tell seconds of processor time, and memory in GB of the server and of the largest worker."""
        processes = [own := psutil.Process(), *own.children(recursive=True)]
        seconds = sum(time.user + time.system for time in (process.cpu_times() for process in processes))
        server, *workers = (process.memory_full_info().pss / 1e9 for process in processes)
        os.write(self._out, (json.dumps({"seconds": seconds, "memory": [server, max(workers)]}) + "\n").encode())
        sys.stdin.readline()


def _main(folder: str, workers: str, keys: str) -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # the log goes elsewhere
    config = complete({**json.loads(keys), "runs-dir": folder})
    path = Path(folder) / str(config["run-name"])
    path.mkdir()
    run_here(config, path, _Waiting(out), workers=int(workers), fork=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
