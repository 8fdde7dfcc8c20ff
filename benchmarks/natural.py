"""Seconds and memory of a run until its first round ends, with very many natural clients of four rows each."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks import suite
from florilegium.common.settings import Value

ROWS, FEATURES = 4, 8
Part = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.str_]]


def _people(count: int) -> Iterator[Part]:
    """Yield random rows of ``count`` people, in random order, with the people's names."""
    rng = np.random.default_rng(1)
    names = rng.permutation(np.repeat([f"u{number:07d}" for number in range(count)], ROWS))
    yield rng.normal(size=(len(names), FEATURES)).astype(np.float32), rng.integers(0, 2, len(names)), names


people_1000 = partial(_people, 1000)
people_100000 = partial(_people, 100_000)
people_1000000 = partial(_people, 1_000_000)


def first_round(count: int, workers: int) -> tuple[float, float, float]:
    """Return seconds to the end of the first round, processor seconds of the run, and peak memory in GB.

    Args:
        count: number of clients, one of those for which this module has a dataset.
        workers: number of worker processes.
    """
    keys: dict[str, Value] = {
        "dataset": f"{__name__}:people_{count}", "task": "binary", "partitioner": "natural", "num-clients": 0,
        "model": "linear", "cohort-size": 100, "rounds": 1, "local-steps": 1, "batch-size": 4, "evaluate-clients": 100,
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    first = suite.first_round(keys, workers)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return first.seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, first.memory
