"""Peak memory of a process and all that it starts."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

_INTERVAL = 0.5


class Memory:
    """Context that measures the memory of a process and of its children, every half second.

    Memory is the sum of the proportional set sizes of the processes, so that shared pages count once.

    Args:
        process: its id.
    """

    def __init__(self, process: int) -> None:
        self._process, self._peak, self._ended = process, 0.0, threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        """Begin to measure."""
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._ended.set()
        self._watcher.join()

    def take(self) -> float:
        """Return the peak in GB since the last call, or since the beginning; 0 if there was no process to look at."""
        self._look()
        peak, self._peak = self._peak, 0.0
        return peak

    def _watch(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        try:
            members = [root := psutil.Process(self._process), *root.children(recursive=True)]
            now = sum(member.memory_full_info().pss for member in members) / 1e9
        except psutil.Error:  # a process has ended; the next look shows the others
            return
        self._peak = max(self._peak, now)
