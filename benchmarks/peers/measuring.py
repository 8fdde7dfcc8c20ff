"""Section ``peers``: the common task in other packages and in ours, in turn, each in processes of its own.

A package's environment has the versions that :data:`packages.PEERS` pins and this environment's version of PyTorch.
It is made by ``uv`` in a temporary folder; this environment's packages are not seen there. A package that is on no
index is a checkout in this folder. The script of each package prints a time stamp after every round.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.memory import Memory
from benchmarks.peers.packages import METHODS, PEERS, Peer
from benchmarks.speed_table import PEERS as PEERS_TABLE
from benchmarks.speed_table import machine
from benchmarks.task import BATCH, COHORT, EPOCHS, IMAGES
from florilegium.common.files import write_text
from tests.environments import interpreters

ROOT = Path(__file__).resolve().parents[2]
PASSES, ROUNDS, WARM = 2, 6, 2
"""Passes, rounds measured in each, and rounds before these, in which networks are built and caches filled."""
LONGEST = 300.0
"""Seconds after which a run is given up."""
HEAD = ("method", "what", "s a round", "CPU-s a round", "s to the first round's end", "GB", "notes", "measured on")


@dataclass(frozen=True)
class Course:
    """One run.

    Attributes:
        ends: seconds from the start of the command to the end of each round.
        work: seconds of processor time of all processes a round, after the first :data:`WARM` ones.
        steps: steps of clients' optimizers a round, in the same rounds.
        memory: the largest memory of all processes, in GB.
    """

    ends: Sequence[float]
    work: float
    steps: float
    memory: float

    @property
    def seconds(self) -> float:
        """The median seconds of a round after the first :data:`WARM` ones."""
        return median(after - before for before, after in zip(self.ends[WARM - 1 :], self.ends[WARM:], strict=False))


@dataclass
class Found:
    """The runs of a package with a method so far, and why there are no more."""

    courses: list[Course]
    failure: str = ""


@dataclass(frozen=True)
class PeerRow:
    """A line of the table: the runs of a package with one method, or why there are none."""

    method: str
    what: str
    courses: Sequence[Course]
    notes: str = ""
    failure: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the row as text: the lowest and highest figures of all passes."""
        if not self.courses:
            return METHODS[self.method], self.what, *4 * ("–",), self.failure.replace("|", "/")
        steps, expected = {course.steps for course in self.courses}, expected_steps(self.method)
        differs = f"{_range(sorted(steps), '.0f')} SGD steps a round, not {expected}" if steps != {expected} else ""
        return (
            METHODS[self.method], self.what,
            _range([course.seconds for course in self.courses], ".2f"),
            _range([course.work for course in self.courses], ".2f"),
            _range([course.ends[0] for course in self.courses], ".1f"),
            f"{max(course.memory for course in self.courses):.2f}",
            "; ".join(filter(None, [self.notes, differs, self.failure.replace("|", "/")])),
        )  # fmt: skip


def _range(values: Sequence[float], digits: str) -> str:
    low, high = (format(end(values), digits) for end in (min, max))
    return low if low == high else f"{low}–{high}"


def expected_steps(method: str) -> int:
    """Return the number of SGD steps of all clients of a round; Ditto trains a second network as long as the first."""
    return COHORT * EPOCHS * (IMAGES // BATCH) * (2 if method == "ditto" else 1)


def stamps(lines: Iterable[str]) -> Iterator[tuple[int, float, int]]:
    """Yield round, time and steps so far of each stamp among the lines of a script; packages print others, too."""
    for line in lines:
        with suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            yield int(entry["round"]), float(entry["time"]), int(entry["steps"])


def make_environment(folder: Path, peer: Peer) -> str:
    """Make the environment of a package in a new folder and return "", or in words why it cannot be had."""
    source = folder / "checkout"
    if peer.checkout:
        try:
            peer.checkout.write(source)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return f"no checkout: {str(error)[:200]}"
    python, torch = folder / "bin" / "python", importlib.metadata.version("torch").partition("+")[0]
    for words in (
        ["venv", "--quiet", "--no-project", "--allow-existing", "--python", peer.python or sys.executable, str(folder)],
        ["pip", "install", "--quiet", "--python", str(python), *peer.packages, f"torch=={torch}"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "uv", *words], cwd=folder.parent, env=os.environ | {"PATH": interpreters()},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return f"no environment: {' '.join(done.stderr.split())[:200]}"
    if peer.checkout:
        peer.checkout.make_importable(source, folder)
    return ""


def _processor_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process and its descendants, also of those that have ended."""
    spent = 0.0
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            spent += sum(member.cpu_times()[:4])  # user, system, and both of children that have ended
    return spent


def follow(command: Sequence[str], rounds: int, folder: Path) -> Course:
    """Run a script for ``rounds`` rounds, :data:`WARM` among them, and return its course.

    Args:
        command: the command line.
        rounds: when the last one has ended, nothing is measured any more.
        folder: an empty folder, in which the command runs.

    Raises:
        RuntimeError: if fewer rounds have ended; with the last line of the errors.
    """
    steps, errors = folder / "steps", folder / "errors.txt"
    steps.touch()
    hidden = ("PYTHON", "VIRTUAL_ENV", "OMP_", "MKL_", "RAY_")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    variables |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PEERS_STEPS": str(steps)}
    variables |= {"TMPDIR": str(folder), "RAY_TMPDIR": str(folder)}
    ends, work, counted = list[float](), list[float](), list[int]()
    with errors.open("w") as file:
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=file, text=True)
        root = psutil.Process(process.pid)
        limit = threading.Timer(LONGEST, _kill, [root])
        limit.start()
        with Memory(process.pid) as memory:
            for number, ended, taken in stamps(process.stdout or ()):
                ends.append(ended - started)
                if number in (WARM, rounds):
                    work.append(_processor_seconds(root))
                    counted.append(taken)
                if number == rounds:
                    break  # what follows, such as a last evaluation, is not measured
            limit.cancel()
            peak = memory.take()
            _kill(root)
            process.communicate()
    if len(ends) < rounds:
        said = [line.strip() for line in errors.read_text(errors="replace").splitlines() if "Error" in line]
        raise RuntimeError(f"{len(ends)} of {rounds} rounds ended: {said[-1][:200] if said else 'no error is shown'}")
    measured = rounds - WARM
    return Course(ends, (work[1] - work[0]) / measured, (counted[1] - counted[0]) / measured, peak)


def _kill(root: psutil.Process) -> None:
    """End a process that this one has started, and its descendants."""
    with suppress(psutil.Error):
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error):
                process.kill()


def command(peer: Peer, python: str, method: str, rounds: int, workers: int) -> list[str]:
    """Return the command line of a script in the environment of ``python``."""
    launcher = [word.format(workers) for word in peer.launcher]
    return [python, *launcher, "-m", f"benchmarks.peers.{peer.module}", method, str(rounds), str(workers)]


def rows(
    workers: int,
    passes: int = PASSES,
    rounds: int = ROUNDS,
    methods: Sequence[str] = tuple(METHODS),
    modules: Sequence[str] = (),
) -> list[PeerRow]:
    """Measure packages in turn, several times; a package that fails has a row with the reason.

    Args:
        workers: worker processes of each package that has some.
        passes: how often every package runs with every method.
        rounds: rounds measured in each run, after :data:`WARM` others.
        methods: keys of :data:`packages.METHODS`.
        modules: scripts of the packages; none: all.
    """
    peers = [peer for peer in PEERS if peer.module in modules or not modules]
    with tempfile.TemporaryDirectory(prefix="peers-") as name:
        folder = Path(name)
        pythons, missing = dict[str, str](), dict[str, str]()
        for peer in {peer.module: peer for peer in peers}.values():
            made = folder / peer.module
            pythons[peer.module] = str(made / "bin" / "python") if peer.packages else sys.executable
            missing[peer.module] = make_environment(made, peer) if peer.packages else ""
        cases = [(method, peer) for method in methods for peer in peers if method in peer.methods]
        found = [Found([], missing[peer.module]) for _, peer in cases]
        for number in range(passes):
            for (method, peer), runs in zip(cases, found, strict=True):
                if runs.failure:
                    continue
                with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as own:
                    words = command(peer, pythons[peer.module], method, WARM + rounds, peer.workers or workers)
                    try:
                        runs.courses.append(follow(words, WARM + rounds, Path(own)))
                    except RuntimeError as error:
                        runs.failure = str(error)
                what = f"pass {number + 1}: {method}, {peer.name.format(workers)}"
                print(f"{what}: {runs.failure or runs.courses[-1]}", flush=True)
    return [
        PeerRow(method, peer.name.format(workers), runs.courses, peer.notes(method), runs.failure)
        for (method, peer), runs in zip(cases, found, strict=True)
    ]


def lines(rows: Iterable[PeerRow], workers: int) -> list[str]:
    """Return the lines of the table for some rows."""
    when = f"{datetime.date.today()}; {machine(workers)}"
    return [f"| {' | '.join((*row.cells(), when))} |" for row in rows]


def write(measured: Sequence[str], target: Path = PEERS_TABLE, *, whole: bool = True) -> None:
    """Write the table with these lines; those of other methods are kept.

    Args:
        measured: lines of :func:`lines`.
        target: the file.
        whole: whether these are all packages, so that other lines of the same methods are deleted.
    """
    before = target.read_text(encoding="utf-8").splitlines()[2:] if target.exists() else []
    replaced = {line.split(" | ")[0] for line in measured} if whole else set[str]()
    kept = [line for line in before if line and line.split(" | ")[0] not in replaced]
    table = {tuple(line.split(" | ")[:2]): line for line in (*kept, *measured)}
    order = [f"| {name}" for name in METHODS.values()]
    ordered = sorted(table.values(), key=lambda line: order.index(line.split(" | ")[0]))
    head = [f"| {' | '.join(HEAD)} |", f"|{len(HEAD) * '---|'}"]
    write_text(target, "\n".join([*head, *ordered]) + "\n\n")
