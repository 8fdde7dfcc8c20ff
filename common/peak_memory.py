"""Peak memory of the processes that carry out a run; Linux alone tells it of a process that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_RESET_PEAK = "5"
"""What makes Linux forget a process's peak, when written to its ``clear_refs``."""


def forget_peaks(processes: Iterable[int]) -> None:
    """Let the peaks of these processes (their ids) begin at what they use now."""
    for process in processes:
        with suppress(OSError):
            (Path("/proc") / str(process) / "clear_refs").write_text(_RESET_PEAK)


def peak_memory(processes: Iterable[int]) -> int | None:
    """Return the sum of the processes' peak resident memory in bytes; None if the system does not tell it.

    Memory that processes share, such as PyTorch's libraries, counts in each of them.
    """
    peaks = [_peak(process) for process in processes]
    return None if None in peaks else sum(peak for peak in peaks if peak is not None)


def _peak(process: int) -> int | None:
    try:
        lines = (Path("/proc") / str(process) / "status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
