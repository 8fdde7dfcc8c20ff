"""Buffered rounds on real devices: slow and silent ones hold up nobody."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

from florilegium.apps import server_app
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import InProcessGrid
from tests.support import config, settings

DEVICES: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 4, "participation": 1.0, "rounds": 6, "local-epochs": 1,
    "weighting": "uniform", "evaluate-every": 0, "min-success": 1.0, "mode": "buffered", "buffer.size": 2,
    "run-name": "run",
}  # fmt: skip
SLOW = "d3"
pytestmark = pytest.mark.long


class _SlowGrid(InProcessGrid):
    """Devices that reply at once, but for one: its replies to training arrive after a number of server steps.

    Args:
        steps: how many; infinite: never.
    """

    def __init__(self, run_config: dict[str, Value], nodes: list[dict[str, Any]], steps: float) -> None:
        super().__init__(run_config, nodes)
        self._steps, self._held, self.asked = steps, dict[str, int](), list[tuple[int, str]]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Note who is asked to train in which round."""
        messages = list(messages)
        names = list(super().push_messages(messages))
        for name, message in zip(names, messages, strict=True):
            if message.metadata.message_type == "train":
                request = message.content["config"]
                (client,) = request["clients"]
                self.asked.append((request["round"], client))
                if client == SLOW:
                    self._held[name] = request["round"]
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived, of which those of the slow device are late."""
        now = max((round for round, _ in self.asked), default=0)
        ready = [name for name in message_ids if now - self._held.get(name, -np.inf) >= self._steps]
        return super().pull_messages(ready)


Run = Callable[..., tuple[Path, _SlowGrid]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what carries out a run on four devices."""
    federation, dataset = federate(settings(num_clients=4, partitioner="iid"))
    for i in range(4):
        write_device(federation, dataset, i, tmp_path / "data" / str(i))
    nodes = [{"client-id": f"d{i}", "data-path": str(tmp_path / "data" / str(i))} for i in range(4)]

    def carry_out(name: str, steps: float = 0, **keys: Value) -> tuple[Path, _SlowGrid]:
        folders = {"runs-dir": str(tmp_path / name), "state-dir": str(tmp_path / f"{name}-state")}
        run_config = config(**{**DEVICES, **folders, **keys})
        grid = _SlowGrid(run_config, nodes, steps)
        server_app.app(grid, Context(1, 1, {}, RecordDict(), run_config))
        return tmp_path / name / "run", grid

    return carry_out


def _failures(path: Path) -> list[dict[str, Any]]:
    file = path / "failures.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_buffer_as_large_as_the_cohort_is_synchronous(run: Run) -> None:
    buffered, _ = run("buffered", **{"buffer.size": 4, "rounds": 3})
    synchronous, _ = run("synchronous", mode="synchronous", rounds=3)
    one, other = read_checkpoint(buffered).arrays, read_checkpoint(synchronous).arrays
    assert all(np.array_equal(one[name], other[name]) for name in other)


def test_replies_that_wait_for_the_next_step_count_as_busy(run: Run) -> None:
    """All four devices reply at once, and a step uses two: two begin anew, so that replies do not accumulate."""
    path, grid = run("run")
    assert Counter(round for round, _ in grid.asked) == {1: 4, **dict.fromkeys(range(2, 7), 2)}
    assert not _failures(path)


def test_a_slow_device_contributes_when_it_returns(run: Run) -> None:
    """Its reply is there in step 4, and counts; meanwhile the others go on."""
    path, grid = run("run", steps=3)
    assert [round for round, client in grid.asked if client == SLOW] == [1, 5]
    counts = [line["training"]["clients"] for line in read_metrics(path) if "training" in line]
    assert counts == [2] * 6
    assert not _failures(path)


def test_a_device_that_returns_too_late_begins_anew(run: Run) -> None:
    path, grid = run("run", steps=3, **{"buffer.max-staleness": 2})
    assert [(line["round"], line["client"]) for line in _failures(path)] == [(4, SLOW)]
    assert "overtaken" in _failures(path)[0]["reason"]
    assert [round for round, client in grid.asked if client == SLOW] == [1, 5]


def test_a_silent_device_is_given_up_and_asked_again(run: Run) -> None:
    path, grid = run("run", steps=np.inf, **{"round-timeout": 0.3, "rounds": 8, "evaluate-every": 2})
    lost = _failures(path)
    assert lost
    assert {(line["client"], line["phase"]) for line in lost} == {(SLOW, "train")}
    assert len([1 for _, client in grid.asked if client == SLOW]) in (len(lost), len(lost) + 1)
    assert read_checkpoint(path).round == 8


def test_a_resumed_run_has_all_devices_begin_anew(run: Run) -> None:
    run("run", steps=np.inf, rounds=2)
    path, grid = run("run", rounds=3, resume="run", **{"run-name": ""})
    assert sorted(client for round, client in grid.asked if round == 3) == ["d0", "d1", "d2", "d3"]
    assert read_checkpoint(path).round == 3
