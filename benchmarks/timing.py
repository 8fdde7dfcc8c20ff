"""Time several functions on one core in turn, so that changes in the machine's speed affect all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode


def alternate(work: Mapping[str, Callable[[], object]], repeats: int, warm: int = 1) -> dict[str, float]:
    """Return the median seconds of each function in ``work`` over ``repeats`` turns, after ``warm`` warm-up turns."""
    seconds: dict[str, list[float]] = {kind: [] for kind in work}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(warm + repeats):
            for kind, step in work.items():
                begun = time.perf_counter()
                step()
                seconds[kind].append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    return {kind: float(np.median(measured[warm:])) for kind, measured in seconds.items()}


def multiplications(work: Callable[[], object]) -> int:
    """Return the number of multiplications and additions in the matrix products and convolutions of ``work``."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())
