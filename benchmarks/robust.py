"""Speed and memory of robust rules: beside Flower's own functions where it has one, and beside a plain mean."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping

import numpy as np
import psutil
from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg
from flwr.serverapp.strategy.bulyan import aggregate_n_closest_weights
from numpy.typing import NDArray

from benchmarks.timing import alternate
from florilegium.models.parameters import Arrays
from florilegium.strategies.robust.registry import RULES
from florilegium.strategies.robust.stack import Stack

UPDATES, ATTACKERS = 100, 20
SIZES = {"62,000": (60_000, 2_000), "11,000,000": (2_200_000,) * 5}
"""Entries of the arrays of an update, about those of LeNet and of ResNet-18."""
REPEATS = {"62,000": 3, "11,000,000": 1}
ROOM = 3.0
"""Memory that a size needs, in sizes of its updates: Flower's functions copy them."""
LINEAR = ("geometric-median", "centred-clipping", "norm-bound", "fltrust")
"""Rules whose work is linear in the number of updates."""


class Alone:
    """The surroundings of a rule without a run: nothing is kept."""

    def __init__(self, own: Arrays) -> None:
        self.clients = [str(i) for i in range(UPDATES)]
        self._own = own

    def generator(self, *purpose: str) -> np.random.Generator:
        """Return a generator."""
        return np.random.default_rng(1)

    def remembered(self, name: str) -> Arrays:
        """Return nothing."""
        return {}

    def remember(self, name: str, arrays: Arrays) -> None:
        """Keep nothing."""

    def trusted(self) -> Arrays:
        """Return an update."""
        return self._own


def fits(sizes: tuple[int, ...]) -> bool:
    """Return whether there is memory for updates of these arrays."""
    return psutil.virtual_memory().available > ROOM * 4 * UPDATES * sum(sizes)


def measure(sizes: tuple[int, ...], repeats: int) -> tuple[dict[str, float], dict[str, float], float]:
    """Return seconds of each rule and of Flower's functions, the memory that each rule adds, and the updates' bytes.

    Args:
        sizes: number of entries of each array of an update.
        repeats: number of turns, of which the median counts.
    """
    rng = np.random.default_rng(1)
    arrays = {f"a{i}.w": rng.standard_normal((UPDATES, size), np.float32) for i, size in enumerate(sizes)}
    alone = Alone({name: array[0].astype(np.float64) for name, array in arrays.items()})
    names = [name for name in RULES.own if name != "foolsgold"]  # which reads histories from a disk
    work: dict[str, Callable[[], object]] = {"plain mean": lambda: _mean(arrays)}
    work |= {name: _rule(name, arrays, alone) for name in names}
    work |= {f"Flower's {name}": step for name, step in _flowers(arrays).items()}
    seconds = alternate(work, repeats)
    return seconds, {name: _added(work[name]) for name in names}, float(sum(a.nbytes for a in arrays.values()))


def _mean(arrays: Arrays) -> Arrays:
    return {name: rows.mean(axis=0, dtype=np.float64) for name, rows in arrays.items()}


def _rule(name: str, arrays: Arrays, alone: Alone) -> Callable[[], object]:
    kind = RULES[name]
    return lambda: kind(kind.keys(), ATTACKERS).combine(Stack(arrays, np.ones(UPDATES)), alone)


def _flowers(arrays: Arrays) -> Mapping[str, Callable[[], object]]:
    """Return Flower's functions; of Bulyan the part after the selection."""
    single: list[tuple[list[NDArray[np.float32]], int]] = [
        ([rows[i] for rows in arrays.values()], 1) for i in range(UPDATES)
    ]
    chosen = [update for update, _ in single[: UPDATES - 2 * ATTACKERS]]

    def bulyan() -> object:
        medians = [np.median(np.stack(parts), axis=0) for parts in zip(*chosen, strict=True)]
        return aggregate_n_closest_weights(medians, chosen, UPDATES - 4 * ATTACKERS)

    return {
        "median": lambda: aggregate_median(single),
        "trimmed-mean": lambda: aggregate_trimmed_avg(single, ATTACKERS / UPDATES),
        "krum": lambda: aggregate_krum(single, ATTACKERS, 0),
        "multi-krum": lambda: aggregate_krum(single, ATTACKERS, UPDATES - ATTACKERS - 2),
        "bulyan": bulyan,
    }


def _added(step: Callable[[], object]) -> float:
    """Return the most bytes that a step holds at a time, besides the updates."""
    tracemalloc.start()
    try:
        step()
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
