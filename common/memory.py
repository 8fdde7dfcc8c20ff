"""Memory that a process has freed: when it keeps it, and when it gives it back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import lru_cache
from threading import Lock

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30
_PASSING = 1 << 25


def keep_freed() -> None:
    """Let the process keep memory that it frees. Does nothing where the C library is another one."""
    if glibc := _glibc():
        glibc.mallopt(_M_MMAP_THRESHOLD, _KEEP)
        glibc.mallopt(_M_TRIM_THRESHOLD, _KEEP)


def trim() -> None:
    """Give memory that is free back to the system. Does nothing where the C library is another one."""
    if glibc := _glibc():
        glibc.malloc_trim(0)


def settle() -> None:
    """Leave what there is now out of later searches for reference cycles, which then take milliseconds.

    For a process whose modules are imported, and which ends with what it holds.
    """
    gc.collect()
    gc.freeze()


class Passing:
    """Gives memory back while requests with large bodies are made.

    httpx's responses are parts of reference cycles, and hold the bodies of request and response until Python looks for
    cycles, which it does by the number of objects and not by their size; and each thread keeps memory that it frees.
    """

    def __init__(self) -> None:
        self._lock, self._bytes = Lock(), 0

    def add(self, count: int) -> None:
        """Count bytes that have passed; at times give memory back."""
        with self._lock:
            self._bytes += count
            if due := self._bytes >= _PASSING:
                self._bytes = 0
        if due:
            gc.collect()
            trim()


@lru_cache(maxsize=1)
def _glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is the GNU one."""
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None)
    return found if hasattr(found, "mallopt") and hasattr(found, "malloc_trim") else None
