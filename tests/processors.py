"""The quick tests as on other processors: each worker of pytest-xdist computes with the instructions of another kind.

``PROCESSORS="avx2-1 avx512-2" pytest -p tests.processors …`` gives these two kinds to the workers in turn. A kind is
the value of ``ATEN_CPU_CAPABILITY``, a number of threads and, where a third part follows, the value of ``MKL_CBWR``.
``python -m tests.processors DATE`` prints two kinds, drawn by the date, among those that this machine can execute. The
module imports nothing that computes, since PyTorch and MKL read these variables once.
"""

from __future__ import annotations

import datetime
import os
import platform
import random
import sys
from pathlib import Path

KINDS = (
    "default-1",
    "default-2",
    "avx2-1",
    "avx2-2",
    "avx512-1",
    "avx512-2",
    "default-1-COMPATIBLE",
    "avx2-2-AVX2,STRICT",
)
AVX2 = {"avx2", "fma"}
NEEDED = {"default": set[str](), "avx2": AVX2, "avx512": AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
"""Flags in Linux's ``/proc/cpuinfo``: PyTorch believes the variable, and a processor without them stops the process."""


def executable(flags: set[str]) -> list[str]:
    """Return the kinds that a processor of these flags can execute; without flags those of ``default``."""
    return [kind for kind in KINDS if NEEDED[kind.split("-")[0]] <= flags]


def flags() -> set[str]:
    """Return the flags of this machine's first processor, none where the system does not list them."""
    listed = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not listed.exists():
        return set()
    lines = (line for line in listed.read_text().splitlines() if line.startswith("flags"))
    return set(next(lines, ":").split(":", 1)[1].split())


def of_the_day(day: str, possible: list[str]) -> list[str]:
    """Return two of the ``possible`` kinds, the same ones all day."""
    return random.Random(day).sample(possible, 2)


def variables(kind: str) -> dict[str, str]:
    """Return the environment of a kind; ValueError where it is none of :data:`KINDS`."""
    if kind not in KINDS:
        raise ValueError(f"PROCESSORS names {kind!r}; allowed are {', '.join(KINDS)}")
    capability, threads, *reproducible = kind.split("-")
    chosen = {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": threads}
    return chosen | ({"MKL_CBWR": reproducible[0]} if reproducible else {})


def kind_of(worker: str, kinds: list[str]) -> str:
    """Return the kind of the worker ``gw0``, ``gw1`` and so on, in turn; of the first where there are no workers."""
    return kinds[int(worker.removeprefix("gw") or 0) % len(kinds)]


if __name__ == "__main__":
    print(*of_the_day(sys.argv[1] if len(sys.argv) > 1 else datetime.date.today().isoformat(), executable(flags())))
elif chosen := os.environ.get("PROCESSORS", "").split():
    os.environ.update(variables(kind_of(os.environ.get("PYTEST_XDIST_WORKER", ""), chosen)))


def pytest_report_header() -> str:
    """Say which kinds compute."""
    return f"processors: {os.environ.get('PROCESSORS') or 'as the machine is'}"
