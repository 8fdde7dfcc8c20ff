"""How the workers of a run share GPUs under Ray."""

from __future__ import annotations


def gpu_share(workers: int, gpus: int) -> float:
    """Return the share of a GPU, 0..1, that each worker asks Ray for, so that all GPUs are used as evenly as possible.

    Ray places as many workers on a GPU as their shares fit into 1, and a worker on one GPU alone.
    """
    on_the_fullest = -(-workers // gpus)
    return (10_000 // on_the_fullest) / 10_000
