"""Settings of a worker process: threads, memory allocation, device."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

import torch
from threadpoolctl import threadpool_limits

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP = 1 << 30


@lru_cache(maxsize=1)
def tune_process(device: str, *, one_thread: bool) -> torch.device:
    """Prepare this process for its work, once, and return the device to work on.

    glibc is told to keep freed memory: otherwise the activations of every step are given back to the system and come
    back as zeroed pages, one page fault each, which costs a small convolutional network a tenth of its time.

    Args:
        device: "cpu", "cuda", "cuda:N", or "auto" (a GPU where there is one).
        one_thread: whether torch and NumPy shall compute with one thread, as in a simulation with a process per core.
    """
    if one_thread:
        torch.set_num_threads(1)
        threadpool_limits(1)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _KEEP)
            libc.mallopt(_M_TRIM_THRESHOLD, _KEEP)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
