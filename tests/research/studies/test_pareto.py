"""Privacy against cost: which runs are made, the front, the tables, going on, and the elbow."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from florilegium.common.errors import ConfigurationError
from florilegium.common.pages import Table
from florilegium.common.settings import Value
from florilegium.models.clustering import elbow
from florilegium.research.studies.elbow import choose_k
from florilegium.research.studies.pareto import (
    Cell,
    Point,
    cells,
    front,
    keys_of,
    questions,
    summarise,
    sweep,
    table,
    write,
)
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.support import CACHE

BASE: dict[str, Value] = {
    "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid", "num-clients": 4,
    "samples-per-client": 500, "server-examples": 200, "server-ood-examples": 100, "participation": 1.0,
    "cache-dir": str(CACHE),
}  # fmt: skip


def _point(method: str, epsilon: float, cost: float, **more: object) -> Point:
    return Point(**{"method": method, "steps": 0, "epsilon": epsilon, "split": "", "cost": cost, "std": 0.0,
                    "accuracy": 0.5, **more})  # fmt: skip


class TestCells:
    def test_every_method_is_asked_for_what_it_can_do(self) -> None:
        wanted = cells(["feddp-kmeans", "server-lloyds", "optimal"], [0.5, 1.0], [0, 1], ["a", "b"], [1, 2])
        own = [c for c in wanted if c.method == "feddp-kmeans" and c.seed == 1]
        assert len(own) == 2 * 2 * 2
        lloyds = [(c.steps, c.epsilon) for c in wanted if c.method == "server-lloyds" and c.seed == 1]
        assert lloyds == [(0, 0.0), (1, 0.5), (1, 1.0)]  # nothing private without a step
        assert [c.seed for c in wanted if c.method == "optimal"] == [1, 2]

    def test_keys(self) -> None:
        keys = keys_of(Cell("feddp-kmeans", 2, 0.7, "0.25,0.25,0.25,0.25", 3), {**BASE, "kmeans.epsilons": "9,9,9,9"})
        assert keys["kmeans.epsilons"] == ""
        assert (keys["rounds"], keys["kmeans.epsilon"], keys["seed"]) == (3, 0.7, 3)
        assert keys["kmeans.split"] == "0.25,0.25,0.25,0.25"

    def test_other_methods_are_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="'fedavg' is not a clustering method"):
            cells(["fedavg"], [1.0], [0], [""], [1])


class TestFront:
    def test_no_point_of_it_is_beaten(self) -> None:
        rng = np.random.default_rng(1)
        points = [_point("m", float(e), float(c)) for e, c in rng.uniform(size=(50, 2))]
        best = front(points)
        for point in points:
            beaten = any(o.epsilon <= point.epsilon and o.cost < point.cost for o in points)
            assert beaten != (point in best)

    def test_means_are_over_seeds(self) -> None:
        lines = [{"method": "m", "steps": 1, "epsilon": 1.0, "split": "", "cost": c, "accuracy": a}
                 for c, a in ((2.0, 0.4), (4.0, 0.6))]  # fmt: skip
        [point] = summarise(lines)
        assert (point.cost, point.std, point.accuracy) == pytest.approx((3.0, 1.0, 0.5))

    def test_the_table_takes_the_best_within_each_budget(self) -> None:
        points = [_point("m", 0.5, 2.0), _point("m", 1.0, 3.0), _point("n", 1.0, 1.0)]
        assert table(points).rows == [
            ["0.5", "2.000 ± 0.000 (50.0 %)", "–"],
            ["1", "2.000 ± 0.000 (50.0 %)", "1.000 ± 0.000 (50.0 %)"],
        ]

    def test_questions_are_answered_from_the_front(self) -> None:
        points = [
            _point("feddp-kmeans", 0.5, 3.0, split="0.1,0.2,0.3,0.4", steps=1),
            _point("feddp-kmeans", 1.0, 2.0, split="0.3,0.2,0.3,0.2"),
            _point("feddp-kmeans", 1.0, 9.0, split="0.7,0.1,0.1,0.1"),
        ]
        answer = questions(points)[-1]
        assert isinstance(answer, Table)
        assert answer.rows == [["0.20", "0.20", "0.30", "0.30", "0.50", "0.50"]]


@pytest.mark.long
def test_a_table_is_made_and_goes_on(tmp_path: Path) -> None:
    wanted = cells(["feddp-kmeans", "server-lloyds", "optimal"], [1.0, 4.0], [0], ["0.35,0.1,0.45,0.1"], [1])
    said: list[str] = []
    lines = sweep(wanted[:2], BASE, tmp_path, 1, said.append)
    assert said[0] == "2 runs, 0 are there already"
    lines = sweep(wanted, BASE, tmp_path, 1, said.append)
    assert "2 runs, 2 are there already" in said
    assert len(lines) == 4
    with (tmp_path / "points.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    points = summarise(lines)
    assert min(points, key=lambda p: p.cost).method == "optimal"
    assert all(0.99 * line["epsilon"] < line["epsilon_spent"] <= line["epsilon"] for line in lines if line["epsilon"])
    text = write(points, tmp_path)
    assert (tmp_path / "pareto.md").read_text() == text + "\n"
    assert Image.open(tmp_path / "pareto.png").size[0] > 500
    with pytest.raises(ConfigurationError, match="holds the table of another configuration"):
        sweep(wanted, {**BASE, "num-clients": 5}, tmp_path, 1, said.append)


class TestElbow:
    @pytest.mark.parametrize("k", [2, 5, 9])
    def test_a_sharp_bend_is_found(self, k: int) -> None:
        costs = [max(k - count, 0) + 0.01 * (10 - count) for count in range(1, 11)]
        assert elbow(costs) == k

    @pytest.mark.long
    def test_k_of_the_mixture(self, tmp_path: Path) -> None:
        keys: dict[str, Value] = {**BASE, "num-clients": 20, "samples-per-client": 1000, "kmeans.epsilon": 4.0}
        assert choose_k(keys, 16, tmp_path) == 10
        assert (tmp_path / "elbow.png").exists()
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert len(summary["kmeans"]["elbow"]) == 16
        assert len(read_checkpoint(tmp_path / "run").arrays["centers"]) == 10
        assert 3.99 < summary["privacy"]["epsilon"] <= 4.0  # one run, one budget

    def test_too_few_values(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="an elbow needs at least three values of k"):
            choose_k(BASE, 2, tmp_path)
