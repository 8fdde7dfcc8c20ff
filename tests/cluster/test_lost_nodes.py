"""Runs on a real Ray cluster that loses nodes and workers end as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.cluster.compared import check_like_undisturbed
from tests.cluster.nodes import in_namespaces, on_loopback
from tests.cluster.runs import finished_round, log_of, running, wait


@pytest.mark.simulation
def test_a_cluster_that_shrinks_to_one_node_ends_the_run_as_if_it_had_not(tmp_path: Path) -> None:
    """The second node dies as a whole, then the worker of the first; the first one does all the rest."""
    with on_loopback(tmp_path, 2) as nodes:
        nodes.start(0)
        nodes.start(1)
        with running(nodes, tmp_path, 2) as run:
            wait(run, tmp_path, lambda: log_of(tmp_path).count("is ready") == 2 and finished_round(tmp_path) >= 2)
            nodes.kill(1)
            wait(run, tmp_path, lambda: "run again elsewhere" in log_of(tmp_path))
            (worker,) = nodes.family(0, "ray::Worker")
            worker.kill()
            assert run.wait(processes.DEADLINE) == 0, (tmp_path / "run.out").read_text()
        assert nodes.family(0, "raylet/raylet")  # the cluster goes on
        wait(run, tmp_path, lambda: not nodes.family(0, "ray::Worker"))  # Ray ends them after the run has ended
    log = log_of(tmp_path)
    assert "(127.0.0.2)" in log
    assert log.count("run again elsewhere") >= 1
    check_like_undisturbed(tmp_path, 2)


@pytest.mark.kills
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces")
def test_three_machines_lose_a_raylet_and_a_worker(tmp_path: Path) -> None:
    """Each node has a network of its own; the machine whose raylet has died does not come back."""
    keys: dict[str, Any] = {"num-clients": 20, "rounds": 60, "participation": 0.5}
    with in_namespaces(tmp_path, 3) as nodes:
        for node in range(3):
            nodes.start(node)
        with running(nodes, tmp_path, 3, **keys) as run:
            wait(run, tmp_path, lambda: log_of(tmp_path).count("is ready") == 3 and finished_round(tmp_path) >= 5)
            (raylet,) = nodes.family(2, "raylet/raylet")
            raylet.kill()
            wait(run, tmp_path, lambda: "run again elsewhere" in log_of(tmp_path) and finished_round(tmp_path) >= 20)
            (worker,) = nodes.family(0, "ray::Worker")[:1]
            worker.kill()
            assert run.wait(processes.DEADLINE) == 0, (tmp_path / "run.out").read_text()
    assert "(10.99.0.3)" in log_of(tmp_path)
    check_like_undisturbed(tmp_path, 3, **keys)
