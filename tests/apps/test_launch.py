"""How the launcher divides GPUs among the workers of a simulation on Ray."""

from __future__ import annotations

import pytest

from florilegium.apps.launch import gpu_share


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8, 12])
def test_all_workers_find_a_place_and_all_gpus_are_used(workers: int, gpus: int) -> None:
    share = gpu_share(workers, gpus)
    fit = int(1 / share)  # workers that Ray places on one GPU
    assert fit * gpus >= workers
    assert -(-workers // fit) == -(-workers // -(-workers // gpus))  # as many GPUs in use as with even numbers
