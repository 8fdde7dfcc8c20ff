"""A tiny pretrained transformer with its tokenizer, in a folder as Hugging Face writes it, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.adapters import write_base
from florilegium.common.settings import Value
from tests.support import CACHE

WIDTH, WORDS, LENGTH = 32, 1000, 64

KEYS: dict[str, Value] = {
    "dataset": f"{__name__}:questions", "num-clients": 3, "participation": 1.0, "local-epochs": 1, "batch-size": 8,
    "rounds": 2, "evaluate-every": 1, "learning-rate": 0.1, "adapter.kind": "lora", "adapter.targets": "query,value",
    "partitioner": "iid",
}  # fmt: skip


@cache
def tiny() -> Path:
    """Return the folder of a BERT of two layers, which is made once."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return write_base(CACHE / "tiny-bert", WIDTH, 2, WORDS + 100)


def keys(**more: Value) -> dict[str, Value]:
    """Return the keys of a small run on it."""
    return {
        **KEYS,
        "model": f"transformers:{tiny()}",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def questions() -> Iterator[tuple[list[str], NDArray[np.int64]]]:
    """Yield training and test texts of three classes, each with words of its own."""
    rng = np.random.default_rng(1)
    for count in (72, 24):
        y = np.arange(count) % 3
        yield (
            [" ".join(f"w{50 * c + word}" for word in rng.integers(50, size=4 + row % 9)) for row, c in enumerate(y)],
            y,
        )
