"""What a cluster's runs survive, and what it costs: ``python -m tests.cluster.campaign [FOLDER]``, as root, on Linux.

Three Ray nodes with a CPU each, in network namespaces. Each line is a run that is disturbed, beside one that is not:
whether model, figures and states of clients are the same, and how much longer it took. Prints a Markdown table.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.compared import differences
from tests.cluster.nodes import Nodes, in_namespaces
from tests.cluster.runs import finished_round, log_of, running, wait

KEYS: Mapping[str, Any] = {"num-clients": 20, "rounds": 60, "participation": 0.5, "evaluate-every": 20}
WORKERS = 6
"""Twice as many messages as CPUs, so that a slow machine need not be waited for."""
CUT = 20.0
"""Seconds for which a link is cut."""

Disturb = Callable[[Nodes, Path], None]


def _nothing(nodes: Nodes, folder: Path) -> None:
    """Let the run be."""


def _raylet(nodes: Nodes, folder: Path) -> None:
    (raylet,) = nodes.family(2, "raylet/raylet")
    raylet.kill()


def _worker(nodes: Nodes, folder: Path) -> None:
    nodes.family(0, "ray::Worker")[0].kill()


def _link(nodes: Nodes, folder: Path) -> None:
    nodes.link(2, "down")
    time.sleep(CUT)
    nodes.link(2, "up")


@contextmanager
def _slow(nodes: Nodes) -> Iterator[None]:
    """Context in which workers of the third node run a fifth of the time."""
    ended = threading.Event()

    def brake() -> None:
        while not ended.is_set():
            workers = nodes.family(2, "ray::Worker")
            for worker in workers:
                worker.send_signal(signal.SIGSTOP)
            ended.wait(0.08)
            for worker in workers:
                worker.send_signal(signal.SIGCONT)
            ended.wait(0.02)

    thread = threading.Thread(target=brake)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _braked(nodes: Nodes, folder: Path) -> None:
    with _slow(nodes):
        while finished_round(folder) < KEYS["rounds"] - 2:
            time.sleep(0.1)


DISTURBANCES: Mapping[str, Disturb] = {
    "nothing": _nothing,
    "SIGKILL of a raylet": _raylet,
    "SIGKILL of a worker on the first node": _worker,
    f"a link cut for {CUT:.0f} s, then healed": _link,
    "a node whose workers run a fifth of the time": _braked,
}


def _run(disturb: Disturb, folder: Path) -> float:
    """Carry out a run that is disturbed from round 10 on; return the seconds of its rounds after the fifth."""
    with in_namespaces(folder, 3) as nodes:
        for node in range(3):
            nodes.start(node)
        with running(nodes, folder, WORKERS, **KEYS) as run:
            wait(run, folder, lambda: log_of(folder).count("is ready") >= 3 and finished_round(folder) >= 5)
            begun = time.monotonic()
            wait(run, folder, lambda: finished_round(folder) >= 10)
            disturb(nodes, folder)
            wait(run, folder, lambda: finished_round(folder) == KEYS["rounds"])
            taken = time.monotonic() - begun
            assert run.wait(60) == 0, (folder / "run.out").read_text()
    return taken


def _killed_command(folder: Path) -> float:
    """Kill the command in round 20 and resume the run; return the seconds as :func:`_run`, with those of the start."""
    with in_namespaces(folder, 3) as nodes:
        for node in range(3):
            nodes.start(node)
        begun = time.monotonic()
        with running(nodes, folder, WORKERS, **KEYS) as run:
            wait(run, folder, lambda: finished_round(folder) >= 5)
            begun = time.monotonic()
            wait(run, folder, lambda: finished_round(folder) >= 20)
            run.kill()
        with running(nodes, folder, WORKERS, resume=True) as run:
            wait(run, folder, lambda: finished_round(folder) == KEYS["rounds"])
            taken = time.monotonic() - begun
            assert run.wait(60) == 0, (folder / "run.out").read_text()
    return taken


def main(folder: Path) -> None:
    """Carry out all runs, and print the table."""
    print("| what was done | messages that ran again | messages by node | s more | results |\n|---|---|---|---|---|")
    undisturbed, whole = 0.0, folder
    runs: dict[str, Callable[[Path], float]] = {
        what: lambda path, disturb=disturb: _run(disturb, path)  # type: ignore[misc]
        for what, disturb in DISTURBANCES.items()
    }
    for number, (what, carry_out) in enumerate(
        (runs | {"SIGKILL of the command, then `resume`": _killed_command}).items()
    ):
        path = folder / str(number)
        path.mkdir(parents=True)
        taken = carry_out(path)
        if not number:
            undisturbed, whole = taken, path / "run"
        again = log_of(path).count("elsewhere")
        shares = re.findall(r"messages by node: (.*)", log_of(path))
        unequal = differences(whole, path / "run")
        said = f"differ: {', '.join(unequal[:3])}" if unequal else "the same"
        print(f"| {what} | {again} | {'; '.join(shares) or '–'} | {taken - undisturbed:+.1f} | {said} |", flush=True)
    rounds = json.loads((whole / "status.json").read_text())["rounds"]
    print(f"\nUndisturbed: {undisturbed:.1f} s for rounds 6 to {rounds}.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
