"""The memory of a run of a large network, measured from outside: ``python -m benchmarks.large`` has the figures."""

from __future__ import annotations

import pytest

from benchmarks.large import SERVER, WORKER, in_workers
from florilegium.common.settings import Value

TRAINING = 2.0
"""Models that training needs with plain SGD and a few rows: the network and its gradients."""


@pytest.mark.long
@pytest.mark.parametrize("keys", [{}, {"secure-aggregation": True, "max-update-norm": 100.0}], ids=["plain", "secure"])
def test_server_and_workers_hold_a_large_model_about_twice(keys: dict[str, Value]) -> None:
    nothing, found = in_workers("small", keys), in_workers("p50", keys)
    server, worker = ((found.memory[role] - nothing.memory[role]) / found.size for role in (SERVER, WORKER))
    assert server <= 2.2
    assert worker <= TRAINING + 1.2
