"""Inputs and tasks combine freely: numbers, times and several labels from pictures, yes or no from texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.common.settings import Value
from florilegium.partitions.sources.arrays import array_dataset
from tests.support import CACHE, config

RNG = np.random.default_rng(6)
Made = tuple[Any, np.ndarray[Any, Any]]


def _pictures(n: int) -> np.ndarray[Any, Any]:
    """Pictures whose upper and lower halves have a brightness each."""
    levels = RNG.integers(20, 236, size=(n, 2))
    noise = RNG.integers(-15, 16, size=(n, 8, 8))
    return (np.repeat(levels, 4, axis=1)[:, :, None] + noise)[..., None].astype(np.uint8)


def _levels(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the brightness of both halves, about −1 to 1."""
    return np.stack([x[:, :4].mean(axis=(1, 2, 3)), x[:, 4:].mean(axis=(1, 2, 3))], axis=1) / 108 - 1.18


def _numbers(n: int) -> Made:
    x = _pictures(n)
    return x, _levels(x) @ np.array([[2.0, 1.0], [-1.0, 3.0]])


def _times(n: int) -> Made:
    """Brighter pictures have earlier events; a fifth is censored."""
    x = _pictures(n)
    times = np.exp(-3 * _levels(x)[:, 0]) * RNG.exponential(size=n) + 0.01
    return x, np.stack([times, RNG.random(n) > 0.2], axis=1).astype(float)


def _labels(n: int) -> Made:
    x = _pictures(n)
    return x, (_levels(x) > 0).astype(float)


def _texts(n: int) -> Made:
    """Texts that say yes or no three times, with some letters before."""
    y = RNG.integers(0, 2, size=n)
    words = ["".join(RNG.choice([*"abcde"], 3)) + (" yes", " not")[label] * 3 for label in y]
    return words, y


CASES: dict[str, tuple[Callable[[int], Made], dict[str, Value], str, Callable[[float], bool]]] = {
    "regression": (_numbers, {"model": "mlp"}, "r2_pooled", lambda value: value > 0.8),
    "survival": (_times, {"model": "mlp"}, "c-index", lambda value: value > 0.75),
    "multi-label": (_labels, {"model": "mlp"}, "f1_pooled", lambda value: value > 0.9),
    "binary": (
        _texts, {"model": "char-lstm", "metrics": "auroc,accuracy,f1", "learning-rate": 0.02}, "auroc",
        lambda value: value > 0.9,
    ),
}  # fmt: skip
"""By task: training data, keys, a figure, and what must hold of it."""
KEYS: dict[str, Value] = {
    "partitioner": "iid", "num-clients": 3, "rounds": 4, "local-epochs": 4, "participation": 1.0, "evaluate-every": 4,
    "batch-size": 20, "optimizer": "adam", "learning-rate": 0.01,
}  # fmt: skip


@pytest.mark.parametrize("task", CASES)
def test_what_is_learned_does_not_depend_on_the_kind_of_inputs(task: str, tmp_path: Path) -> None:
    make, own, figure, holds = CASES[task]
    path = array_dataset(make(240), make(120), name=f"inputs-{task}", cache_dir=str(CACHE))
    run = tmp_path / "run"
    run_here(
        config(**{**KEYS, **own, "task": task, "dataset": path, "run-name": "run", "runs-dir": str(tmp_path)}), run
    )
    found = json.loads((run / "summary.json").read_text(encoding="utf-8"))["final"]["seen"]
    assert holds(found[figure]), found
