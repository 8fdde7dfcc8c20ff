"""The launcher of a simulation on Ray: how GPUs are divided among workers, and which folders others may write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from florilegium.apps.engines.ray_simulation import Simulation
from florilegium.cluster.shares import gpu_share


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 7, 8, 12])
def test_all_workers_find_a_place_and_all_gpus_are_used(workers: int, gpus: int) -> None:
    share = gpu_share(workers, gpus)
    fit = int(1 / share)  # workers that Ray places on one GPU
    assert fit * gpus >= workers
    assert -(-workers // fit) == -(-workers // -(-workers // gpus))  # as many GPUs in use as with even numbers


def test_what_ray_opens_to_everybody_holds_nothing_that_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray makes its folder writable by all users; it lies in one that nobody else enters, beside the app."""
    commands: list[list[str]] = []
    simulation = Simulation(1)
    try:
        monkeypatch.setattr(simulation, "_popen", lambda command, stdout: commands.append(command))
        simulation._start_ray()
        rays = Path(commands[0][commands[0].index("--temp-dir") + 1])
        home = simulation._home
        assert rays.parent == home
        assert home.stat().st_mode & 0o777 == 0o700
        assert simulation._environment()["RAY_TMPDIR"] == str(rays)
        laid_out = simulation._app()
        assert laid_out.parent == home
        assert laid_out != rays
    finally:
        simulation.__exit__()
    assert not home.exists()
