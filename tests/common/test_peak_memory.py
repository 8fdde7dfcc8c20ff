"""Peak memory of processes."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import weakref
from pathlib import Path

import psutil
import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.methods.declaration import Method
from florilegium.clients.core.worker import return_memory, tune_process
from florilegium.common.peak_memory import forget_peaks, peak_memory
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.attempts import read_provenance
from tests.support import config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells the peak of a process")
LARGE = 200_000_000


def _hold(size: int) -> None:
    with mmap.mmap(-1, size) as held:  # is given back at once, unlike what the allocator keeps
        while held.tell() < size:
            held.write(b"\1" * 100_000)  # memory that nobody wrote to is not used


def test_a_peak_is_seen_and_forgotten() -> None:
    forget_peaks([os.getpid()])
    before = peak_memory([os.getpid()])
    _hold(LARGE)
    held = peak_memory([os.getpid()])
    forget_peaks([os.getpid()])
    after = peak_memory([os.getpid()])
    assert before is not None
    assert held is not None
    assert after is not None
    assert held - before > 0.9 * LARGE
    assert after < held - 0.9 * LARGE


def test_what_was_freed_is_not_charged_to_the_next_run() -> None:
    tune_process("cpu", one_thread=False)
    process = psutil.Process()
    held = [bytearray(b"\1") * 100_000 for _ in range(LARGE // 100_000)]
    del held
    kept = process.memory_info().rss
    return_memory()
    assert process.memory_info().rss < kept - 0.9 * LARGE


def test_what_an_earlier_run_has_left_is_gone_when_the_next_begins(tmp_path: Path) -> None:
    """Strategies are parts of reference cycles, which Python would collect at some later time."""
    strategies: list[weakref.ref[CohortStrategy]] = []

    class Watching(FedAvg):
        def __init__(self, setup: Setup) -> None:
            super().__init__(setup)
            assert all(earlier() is None for earlier in strategies)
            strategies.append(weakref.ref(self))

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Method, "strategy_class", lambda self: Watching)
            for name in ("first", "second"):
                run_here(config(rounds=0, **{"runs-dir": str(tmp_path), "run-name": name}), tmp_path / name)
    finally:
        gc.enable()
    assert len(strategies) == 2


def test_processes_are_added_up_and_an_ended_one_is_unknown() -> None:
    waits = ["sh", "-c", "echo ready; read nothing"]  # does not grow once it is ready
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(waits, **pipes) as first, subprocess.Popen(waits, **pipes) as second:
        for process in (first, second):
            assert process.stdout is not None
            process.stdout.readline()
        both, one, other = (peak_memory(pids) for pids in ([first.pid, second.pid], [first.pid], [second.pid]))
        assert one
        assert other
        assert both == one + other
        first.kill()
        second.kill()
    assert peak_memory([os.getpid(), first.pid]) is None


def test_a_run_keeps_its_peak(tmp_path: Path) -> None:
    run_here(config(rounds=1, num_clients=2, run_name="run", runs_dir=str(tmp_path)), tmp_path / "run")
    (part,) = read_provenance(tmp_path / "run")
    assert part["peak_memory_mb"] == pytest.approx((peak_memory([os.getpid()]) or 0) / 1e6, rel=0.2)
