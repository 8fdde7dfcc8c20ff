"""Seconds of several pieces of work on one core, which take turns, so that a machine's moods meet all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch


def alternate(work: Mapping[str, Callable[[], object]], repeats: int, warm: int = 1) -> dict[str, float]:
    """Return the median seconds of each piece of ``work`` over ``repeats`` turns, after ``warm`` that do not count."""
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
