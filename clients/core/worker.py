"""Settings of a process that computes: threads, memory allocation, device."""

from __future__ import annotations

import gc
import os
from functools import lru_cache

import torch
from threadpoolctl import threadpool_limits

from florilegium.common.errors import ConfigurationError
from florilegium.common.memory import keep_freed, trim

SMALL = 1_000_000
"""Number of parameters from which on a network is worth several threads (docs/deployment.md)."""
OWN_THREADS = "OMP_NUM_THREADS"
"""Environment variable by which the owner of a device chooses a number of threads."""


@lru_cache(maxsize=1)
def tune_process(device: str, *, one_thread: bool) -> torch.device:
    """Set threads and memory allocation of this process, once; return the device to compute on.

    glibc is told to keep freed memory. Otherwise the memory of every step's activations is returned to the system and
    comes back as zeroed pages, one page fault each, which costs a small convolutional network a tenth of its time.

    Args:
        device: "cpu", "cuda", "cuda:N", or "auto" (a GPU where there is one).
        one_thread: whether PyTorch and NumPy compute with one thread, as in a simulation with one process per core.

    Raises:
        ConfigurationError: if there is no such GPU.
    """
    if one_thread:
        torch.set_num_threads(1)
        threadpool_limits(1)
    keep_freed()
    # Asked otherwise, the CUDA runtime would start in this process, and no worker that uses a GPU could be forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    found = torch.device(device)
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ConfigurationError(
            f"device: '{device}' is not there; PyTorch {torch.__version__} sees {torch.cuda.device_count()} GPUs. Take "
            "'auto' or 'cpu'"
        )
    return found


def limit_threads(asked: int, parameters: int) -> None:
    """Set how many threads PyTorch and NumPy compute with in the process of a device.

    Args:
        asked: their number; 0: one for a small network; else, and where ``OMP_NUM_THREADS`` is set, as PyTorch does.
        parameters: number of the network's parameters.
    """
    if not asked and (OWN_THREADS in os.environ or parameters >= SMALL):
        return
    torch.set_num_threads(asked or 1)
    threadpool_limits(asked or 1)


def return_memory() -> None:
    """Give memory that is no longer used, and that glibc keeps (:func:`tune_process`), back to the system.

    Without it, the peak memory of a run would include that of all runs before it in its process, strategies with their
    models among them, which are parts of reference cycles.
    """
    gc.collect()
    trim()
