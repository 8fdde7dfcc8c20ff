"""The bound of updates that follows what most devices send, and what one liar among three cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from florilegium.clients.core.wire import Reply
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.folder.run_folder import read_checkpoint
from florilegium.strategies.layers.bound import EXCHANGES, LEAST, MEDIANS, NORMS, Norms
from tests.fingerprints import cases
from tests.liars import LIAR, Devices
from tests.runs import Runs

THREE: dict[str, Value] = {
    "method": "fedavg", "model": "mlp", "num-clients": 3, "partitioner": "iid", "participation": 1.0, "rounds": 10,
    "local-epochs": 2, "learning-rate": 0.1, "batch-size": 16, "evaluate-every": 0, "min-success": 0.5,
}  # fmt: skip


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Return what carries out runs on three devices."""
    return Devices(tmp_path, THREE, monkeypatch)


def times(factor: float) -> Callable[[Reply, str], Reply]:
    """Return what multiplies the update of an honest reply."""

    def lie(honest: Reply, kind: str) -> Reply:
        return replace(honest, arrays={name: (factor * a).astype(a.dtype) for name, a in honest.arrays.items()})

    return lie


def accuracy(path: Path) -> float:
    """Return the accuracy at the end of a run, over all devices."""
    figures = json.loads((path / "summary.json").read_text())["final"]["seen"]
    return float(figures["accuracy"])


def failures(path: Path) -> list[tuple[int, str, str]]:
    """Return round, client and reason of each failure of a run."""
    file = path / "failures.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [(line["round"], line["client"], line["reason"]) for line in lines]


def test_one_of_three_with_minus_thirty_times_its_update(devices: Devices) -> None:
    honest, attacked = devices.told("honest"), devices.lied("attacked", times(-30.0))
    assert failures(honest) == []
    assert accuracy(attacked) > 0.93
    assert accuracy(honest) - accuracy(attacked) < 0.02
    assert [(number, client) for number, client, _ in failures(attacked)] == [(r, LIAR) for r in range(1, 11)]
    assert all("an update has norm" in reason for *_, reason in failures(attacked))


def test_each_lie_that_is_accepted_raises_no_bound(devices: Devices) -> None:
    """What is nine medians long in every round is accepted, and the bound stays ten medians of honest devices."""
    nine, key = devices.lied("nine", times(-9.0), rounds=3), "max-update-norm"
    assert failures(nine) == []
    bounded = devices.lied("bounded", times(-9.0), rounds=3, **{key: 5.0})
    assert [client for _, client, _ in failures(bounded)] == [LIAR] * 3
    past = read_checkpoint(nine).facts["norms"]["train"]
    assert [len(norms) for norms in past] == [3, 3, 3]
    for norms in past:
        assert max(norms) == pytest.approx(9 * sorted(norms)[1], rel=0.5)


def test_a_resumed_run_goes_on_with_the_norms_of_its_checkpoint(devices: Devices) -> None:
    """The liar's norm is 30 times the others', and lies within the bound of a run that has begun anew."""
    keys: dict[str, Value] = {"local-steps": 1, "learning-rate": 0.01, "rounds": 3}

    def late(honest: Reply, kind: str) -> Reply:
        return times(-30.0)(honest, kind)

    devices.told("run", checkpoint_every=1, **{**keys, "rounds": 2})
    before = read_checkpoint(devices.folder / "run").facts["norms"]
    devices.lied("run", late, resume="run", **keys)
    assert [(number, client) for number, client, _ in failures(devices.folder / "run")] == [(3, LIAR)]
    after = read_checkpoint(devices.folder / "run").facts["norms"]
    assert after["train"][: len(before["train"])] == before["train"]
    assert [len(norms) for norms in after["train"]] == [3, 3, 2]


class TestNorms:
    def test_the_first_norms_are_judged_among_themselves(self) -> None:
        """The middle of three, or the upper of the two in the middle, times ten; with fewer, the bound of the start."""
        norms = Norms()
        norms.start = 40.0
        assert norms.bound("train", [1.0, 900.0]) == 40.0
        assert norms.bound("train", [1.0, 900.0, 2.0]) == MEDIANS * 2.0
        assert norms.bound("train", [1.0, 2.0, 3.0, 900.0]) == MEDIANS * 3.0

    def test_norms_that_shrink_to_nothing_leave_room(self) -> None:
        norms = Norms()
        norms.start = 40.0
        assert norms.bound("train", [0.0] * 5) == LEAST * 40.0

    def test_other_phases_have_other_norms(self) -> None:
        norms = Norms()
        norms.accept("train", [1.0] * 5)
        assert norms.bound("adapt", [8.0, 8.0, 8.0]) == MEDIANS * 8.0

    def test_a_cohort_of_liars_is_judged_by_those_before(self) -> None:
        norms = Norms()
        for _ in range(EXCHANGES):
            norms.accept("train", [1.0, 1.1, 0.9])
        assert norms.bound("train", [500.0, 500.0, 500.0]) == MEDIANS * 1.0  # the 8th of 15

    @pytest.mark.parametrize(("size", "kept"), [(1, NORMS), (3, EXCHANGES), (50, EXCHANGES)])
    def test_the_last_exchanges_count(self, size: int, kept: int) -> None:
        """Four, or as many as have twelve norms: then norms that triple with every exchange of three are accepted."""
        norms = Norms()
        for _ in range(2 * NORMS):
            norms.accept("train", [1.0] * size)
        assert [len(some) for some in norms.facts()["train"]] == [size] * kept

    def test_norms_that_double_with_every_exchange_are_accepted(self) -> None:
        norms, grown = Norms(), 0.0
        for number in range(20):
            grown = 2.0**number
            assert max(grown, 0.1) <= norms.bound("train", [grown] * 3)
            norms.accept("train", [grown] * 3)
        assert grown > 1e5


class TestNetworksOfClients:
    """Methods whose clients send their own networks."""

    METHODS = ("fedamp", "fedfomo", "apple")

    @pytest.mark.parametrize("method", METHODS)
    def test_one_reply_of_a_million_is_left_out(self, devices: Devices, method: str) -> None:
        def million(honest: Reply, kind: str) -> Reply:
            if not honest.arrays or kind != "train":
                return honest
            return replace(honest, arrays={name: np.full_like(a, 1e6) for name, a in honest.arrays.items()})

        keys: dict[str, Value] = {"method": method, "rounds": 4}
        honest, attacked = devices.told("honest", **keys), devices.lied("attacked", million, **keys)
        assert failures(honest) == []
        assert {(number, client) for number, client, _ in failures(attacked)} == {(r, LIAR) for r in range(1, 5)}
        assert all("an update has norm" in reason for *_, reason in failures(attacked))
        assert accuracy(honest) - accuracy(attacked) < 0.02
        assert max(float(np.abs(a).max()) for a in read_checkpoint(attacked).arrays.values()) < 10

    @pytest.mark.parametrize("method", [*METHODS, "cfl", "fl-hc"])
    def test_the_key_is_no_word_without_effect(self, tmp_path: Path, method: str) -> None:
        """In a simulation, where every client's update is longer than the bound."""
        run = Runs(tmp_path, {**THREE, "rounds": 1, "cfl.epsilon-1": 2.0, "cfl.epsilon-2": 0.0})
        with pytest.raises(RunError, match=r"norm .*max-update-norm"):
            run("short", method=method, **{"max-update-norm": 1e-6})


@pytest.mark.parametrize("method", ["local", "fedproto", "k-fed", "mdm"])
def test_the_key_is_refused_where_no_updates_are_sent(tmp_path: Path, method: str) -> None:
    with pytest.raises(ConfigurationError, match="max-update-norm: it has no effect with method"):
        Runs(tmp_path, {**cases()[method], "max-update-norm": 1.0})("refused")
