"""A dataset of times to an event, for tests of methods that need one: ``dataset = "tests.made_survival:patients"``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def patients() -> Iterator[Any]:
    """Yield training and test rows: inputs (n, 3), times with ties and events (n, 2), six owners."""
    for seed, n in ((1, 300), (2, 60)):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 3)).astype(np.float32)
        time, censored = np.ceil(20 * rng.exponential(np.exp(-0.6 * x[:, 0]))), np.ceil(40 * rng.random(n))
        y = np.column_stack([np.minimum(time, censored), time <= censored]).astype(np.float32)
        yield x, y, np.array([f"c{i % 6}" for i in range(n)])
