"""Recovery of rows from steps of Lloyd's algorithm: by hand, and of runs with and without noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.clustering import sums
from florilegium.research.attacks.trajectory import Step, attack, from_centers, from_sums
from tests.runs import Runs

KEYS: dict[str, Value] = {
    "method": "server-lloyds", "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid",
    "num-clients": 5, "samples-per-client": 60, "server-examples": 40, "server-ood-examples": 0, "participation": 1.0,
    "rounds": 12, "evaluate-every": 0, "kmeans.privacy-unit": "none", "kmeans.k": 4,
}  # fmt: skip
POINTS = np.random.default_rng(4).normal(size=(9, 5))
BEFORE = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])


def _step(labels: np.ndarray) -> Step:
    return Step(*sums(POINTS, labels, 3))


def _moved(*moves: tuple[int, int]) -> np.ndarray:
    after = BEFORE.copy()
    for row, to in moves:
        after[row] = to
    return after


def _centers(labels: np.ndarray) -> np.ndarray:
    step = _step(labels)
    return step.sums / step.counts[:, None]


@pytest.mark.parametrize("see", ["sums", "centers"])
def test_a_row_that_moves_alone_is_seen(see: str) -> None:
    after = _moved((2, 1))
    if see == "sums":
        found = from_sums([_step(BEFORE), _step(after)])
    else:
        found = from_centers([_centers(BEFORE), _centers(after)])
    np.testing.assert_allclose(found, [POINTS[2]], rtol=1e-9)


@pytest.mark.parametrize("moves", [(), ((2, 1), (5, 2)), ((2, 1), (3, 1))])
def test_rows_that_move_together_are_not(moves: tuple[tuple[int, int], ...]) -> None:
    after = _moved(*moves)
    assert from_sums([_step(BEFORE), _step(after)]) == []
    assert from_centers([_centers(BEFORE), _centers(after)]) == []


def test_a_cluster_of_one_row_is_the_row() -> None:
    after = _moved((7, 1))
    np.testing.assert_allclose(from_sums([_step(after)]), [POINTS[8]])


@pytest.mark.long
def test_a_finished_run_gives_rows_away_unless_it_is_private(tmp_path: Path) -> None:
    run = Runs(tmp_path, KEYS)
    path = run("open")
    found = attack(path)
    assert len(found.rows) == 300
    for who, rows in found.found.items():
        assert 0 < found.right(who) <= len(rows), who
    assert (path / "audit-trajectory.md").read_text() == found.table()
    private = attack(run("private", **{"kmeans.privacy-unit": "example", "kmeans.epsilon": 5.0}))
    assert not any(len(rows) for rows in private.found.values())


@pytest.mark.long
def test_what_has_no_steps_is_refused(tmp_path: Path) -> None:
    path = Runs(tmp_path, {**KEYS, "rounds": 1})("run")
    with pytest.raises(RunError, match="set rounds above 1"):
        attack(path)
