"""Centres and sums that no points within the declared range of the data have."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.settings.configuration import parse
from florilegium.clients.clustering.k_fed import KFedClient
from florilegium.clients.core.base import Answer
from florilegium.clients.core.wire import Reply
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.partitions.clientdata import simulated
from florilegium.partitions.federation import federate
from florilegium.partitions.loading import dataset_of
from florilegium.strategies.clustering.ranges import box, check_centers, check_sums, far_away
from tests.liars import LIAR, Devices
from tests.runs import Runs
from tests.support import config, settings

KEYS: dict[str, Value] = {
    "model": "centers", "partitioner": "iid", "participation": 1.0, "evaluate-every": 1, "min-success": 0.5,
    "kmeans.reveal-rows": True, "kmeans.privacy-unit": "none",
}  # fmt: skip
DIGITS: dict[str, Value] = {"dataset": "digits", "num-clients": 5}
MIXTURE: dict[str, Value] = {
    "dataset": "gaussian-mixture", "num-clients": 5, "samples-per-client": 200, "server-examples": 200,
    "server-ood-examples": 0,
}  # fmt: skip


def _cost(path: Path) -> float:
    return float(json.loads((path / "summary.json").read_text())["final"]["seen"]["loss"])


def _reasons(path: Path) -> list[str]:
    lines = [json.loads(line) for line in (path / "failures.jsonl").read_text().splitlines()]
    assert {line["client"] for line in lines} == {LIAR}
    return [line["reason"] for line in lines]


@pytest.mark.parametrize("factor", [1e6, 5.0])
def test_centres_far_outside_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    """What the others make of their own centres is within 2 % of the honest run's cost."""

    def lie(honest: Reply, kind: str) -> Reply:
        if "centers" not in honest.arrays:
            return honest
        return replace(honest, arrays={**honest.arrays, "centers": factor * honest.arrays["centers"]})

    devices = Devices(tmp_path, {**KEYS, **DIGITS, "method": "k-fed", "rounds": 1}, monkeypatch)
    honest, attacked = devices.told("honest"), devices.lied("attacked", lie)
    assert not (honest / "failures.jsonl").exists()
    (found,) = _reasons(attacked)
    assert re.search(f"client {LIAR} has a centre with .* where the data lie between", found)
    assert _cost(attacked) == pytest.approx(_cost(honest), rel=0.02)


def test_where_no_range_is_declared_most_clients_are_the_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, original = Runs(tmp_path, {**KEYS, **MIXTURE, "method": "k-fed", "rounds": 1}), KFedClient.perform

    def perform(client: KFedClient, name: str, arrays: Arrays, arguments: Any) -> Answer:
        answer = original(client, name, arrays, arguments)
        if name == "cluster" and client.client_id == "4":
            answer = replace(answer, arrays={**answer.arrays, "centers": 1e6 * answer.arrays["centers"]})
        return answer

    honest = run("honest")
    monkeypatch.setattr(KFedClient, "perform", perform)
    attacked = run("attacked")
    lines = [json.loads(line) for line in (attacked / "failures.jsonl").read_text().splitlines()]
    assert [line["client"] for line in lines] == ["4"]
    assert "a centre has norm" in lines[0]["reason"]
    assert "more than 10 times the median" in lines[0]["reason"]
    assert _cost(attacked) == pytest.approx(_cost(honest), rel=0.02)


@pytest.mark.parametrize("unit", ["none", "example"])
def test_sums_far_outside_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str) -> None:
    def lie(honest: Reply, kind: str) -> Reply:
        return replace(honest, arrays={n: 1e6 * a if n == "sums" else a for n, a in honest.arrays.items()})

    keys: dict[str, Value] = {
        **KEYS, **DIGITS, "method": "server-lloyds", "rounds": 2, "kmeans.privacy-unit": unit, "kmeans.epsilon": 1000.0,
        "server-data": str(tmp_path / "data-0" / "train.parquet"),
    }  # fmt: skip
    devices = Devices(tmp_path, keys, monkeypatch)
    honest, attacked = devices.told("honest"), devices.lied("attacked", lie)
    assert not (honest / "failures.jsonl").exists()
    assert all("the sum of cluster" in reason for reason in _reasons(attacked))


def test_the_box_is_that_of_the_pixels() -> None:
    """The darkest and the brightest pixel, and no point of the data outside."""
    spec = dataset_of(settings())
    low, high = box(spec)
    mean, std = spec.mean[0], spec.std[0]
    np.testing.assert_allclose(low, -mean / std)
    np.testing.assert_allclose(high * std + mean, spec.brightest / 255)
    federation, dataset = federate(parse(config(**{"num-clients": 2, "partitioner": "iid"}))[0])
    points = simulated(federation, dataset, 0).train.x.flatten(1).numpy()
    assert (points >= low - 1e-5).all()
    assert (points <= high + 1e-5).all()
    check_centers(spec, "a", np.stack([low, high]))
    for outside in (low - 0.01, high + 0.01):
        with pytest.raises(ValueError, match="client a has a centre"):
            check_centers(spec, "a", outside[None])


@pytest.mark.parametrize(
    ("arrays", "wrong"),
    [
        ({"counts": [2.0, 3.0], "sums": [[4.0, 0.0], [0.0, 6.0]]}, ""),
        ({"counts": [2.0, 3.0], "sums": [[4.1, 0.0], [0.0, 6.0]]}, "the sum of cluster 0 has norm 4.1"),
        ({"counts": [2.0, 3.1], "sums": [[0.0, 0.0], [0.0, 0.0]]}, "5.1 together, of 5"),
        ({"counts": [-1.0, 3.0], "sums": [[0.0, 0.0], [0.0, 0.0]]}, "-1 to 3 points"),
        ({"weights": [5.0, 0.0]}, ""),
        ({"weights": [5.0, 0.1]}, "5.1 together, of 5"),
    ],
)
def test_sums_of_five_points_of_norm_two(arrays: dict[str, list], wrong: str) -> None:
    reply = Reply(["a"], {name: np.array(array) for name, array in arrays.items()}, {"num-examples": [5.0]}, {})
    if not wrong:
        check_sums(reply, 2.0, capped=False)
        return
    with pytest.raises(ValueError, match=wrong):
        check_sums(reply, 2.0, capped=False)


def test_a_client_counts_once_in_each_cluster_where_clients_are_protected() -> None:
    one = Reply(["a"], {"counts": np.ones(7), "sums": np.ones((7, 2))}, {"num-examples": [3.0]}, {})
    check_sums(one, 2.0, capped=True)
    with pytest.raises(ValueError, match="together, of 3"):
        check_sums(one, 2.0, capped=False)
    with pytest.raises(ValueError, match=r"1 to 1\.5 points"):
        check_sums(replace(one, arrays={**one.arrays, "counts": np.linspace(1, 1.5, 7)}), 2.0, capped=True)


def test_two_clients_are_not_judged_by_each_other() -> None:
    near, far = np.ones((2, 3)), np.full((1, 3), 1e6)
    assert far_away("ab", [near, far]) == {}
    assert [*far_away("abc", [near, near, far])] == ["c"]
    assert far_away("abcd", [near, far, near, far]) == {}
