"""What the final figures do not show: clients that failed, losses that rose, accuracy at chance."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.engines.one_process import run_here
from florilegium.apps.reports.notes import notes
from florilegium.apps.reports.pools import sections
from florilegium.apps.reports.run_records import load_run
from florilegium.apps.runs.experiment import tell_warnings
from florilegium.clients.core.base import BaseClient
from florilegium.common.settings import Value
from florilegium.partitions.clientdata import constant
from florilegium.partitions.federation import federate
from florilegium.privacy.ledger import SPENT
from florilegium.strategies.core.health import Attendance, at_chance, diverged, unmeasured
from florilegium.strategies.exchange.exchange import LATE
from florilegium.strategies.folder.results import read_summary
from florilegium.tasks.registry import make_task
from florilegium.tasks.task import Targets
from tests.support import TASK, config, settings

KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 6, "participation": 1.0, "rounds": 2, "local-epochs": 1, "evaluate-every": 0,
    "checkpoint-every": 1,
}  # fmt: skip


class TestAttendance:
    def _after(self, *rounds: dict[str, str], clients: int = 20) -> Attendance:
        attendance = Attendance()
        for failures in rounds:
            attendance.add([str(i) for i in range(clients)], failures)
        return attendance

    def test_who_never_succeeded(self) -> None:
        attendance = self._after({"3": "no disk"}, {"3": "no disk", "4": "once"})
        assert [*attendance.warnings()] == [
            "1 of 20 clients failed in every round that asked them to train: client 3: no disk",
            "2 of 20 clients failed in at least one round; 8% of the updates asked for are missing: client 3: no disk "
            "(1 other reasons in failures.jsonl)",
        ]
        assert attendance.report()["failed"] == [
            {"client": "3", "rounds": 2, "failed": 2, "reason": "no disk"},
            {"client": "4", "rounds": 2, "failed": 1, "reason": "once"},
        ]

    @pytest.mark.parametrize(("failed", "told"), [(1, False), (2, True)])
    def test_a_tenth_of_all(self, failed: int, told: bool) -> None:
        attendance = self._after({}, {str(i): "lost" for i in range(failed)})
        assert bool([*attendance.warnings()]) == told

    def test_budgets_and_late_replies_are_no_failures(self) -> None:
        attendance = self._after({"1": f"{SPENT}: ε", "2": f"{LATE} 5 to answer", "3": f"{LATE} 5"})
        assert [*attendance.warnings()] == []
        assert attendance.report() == {}

    def test_a_checkpoint_keeps_the_counts(self) -> None:
        before, after = self._after({"3": "no disk"}), Attendance()
        after.take_back(json.loads(json.dumps(before.facts())))
        assert after.report() == before.report()
        after.add(["3"], {"3": "still no disk"})
        assert after.report()["failed"] == [{"client": "3", "rounds": 2, "failed": 2, "reason": "still no disk"}]


def test_many_clients_with_one_reason_are_told_in_a_line() -> None:
    (told,) = unmeasured([*map(str, range(9))], ["0", "1"], {str(i): "asleep" for i in range(2, 8)})
    assert told == (
        "7 of 9 clients failed in the last evaluation, and do not count in it: clients 2, 3, 4, 5, 6, …: asleep "
        "(1 other reasons in failures.jsonl)"
    )


class TestDivergence:
    @pytest.mark.parametrize(
        ("losses", "test_loss", "told"),
        [
            ([2.0, 1.0, 2.1], 1.0, "ends above its start (2 in the first round, 2.1 in the last)"),
            ([2.0, 1.9, *[1.0] * 16, 1.9, 1.95], 1.0, ""),  # a tenth of the rounds at both ends
            ([2.0, 1.9, *[1.0] * 16, 1.9, 2.1], 1.0, "ends above its start (1.95 in the first 2 rounds"),
            ([9.0, 2.5], 2.4, "above that of guessing, 2.303 (2.5 on training, 2.4 on test examples)"),
            ([9.0, 2.5], 2.2, ""),  # a training loss with a penalty
            ([9.0, 2.2], 2.5, ""),  # models that are too sure
            ([9.0, 2.5], math.nan, ""),
            ([2.0], 3.0, ""),
            ([], 3.0, ""),
        ],
    )
    def test_losses(self, losses: list[float], test_loss: float, told: str) -> None:
        found = "".join(diverged(losses, test_loss, TASK.guess))
        assert (told in found) if told else not found

    def test_regression_has_no_guess(self) -> None:
        assert not [*diverged([9.0, 8.0], 8.0, make_task("regression", Targets(("y",))).guess)]

    @pytest.mark.parametrize(
        ("accuracy", "examples", "chance", "told"),
        [
            (0.75, 10_000, 0.75, True),  # always the most frequent class
            (0.76, 10_000, 0.75, False),  # 2.3 standard errors above
            (0.76, 1_000, 0.75, True),
            (0.5, 1_000, math.nan, False),
            (1.0, 1_000, 1.0, False),  # a single class
        ],
    )
    def test_accuracy(self, accuracy: float, examples: int, chance: float, told: bool) -> None:
        assert bool([*at_chance("seen", TASK, accuracy, examples, chance)]) == told

    @pytest.mark.parametrize(
        ("rmse", "chance", "told"),
        [
            (2.0, 2.0, True),  # always the mean
            (2.5, 2.0, True),
            (1.9, 2.0, False),  # 5 standard errors of 2 ÷ √20000 = 0.014 below
            (1.98, 2.0, True),
            (1.0, math.nan, False),
            (0.0, 0.0, False),  # a single number
        ],
    )
    def test_errors_are_better_when_smaller(self, rmse: float, chance: float, told: bool) -> None:
        task = make_task("regression", Targets(("y",)))
        assert bool([*at_chance("seen", task, rmse, 10_000, chance)]) == told


def test_the_share_of_the_most_frequent_class() -> None:
    federation, dataset = federate(settings(**{"num-clients": 6}))
    labels = np.concatenate([dataset.test.y[federation.test[client]] for client in (1, 4)])  # type: ignore[union-attr]
    assert constant(federation, dataset, [1, 4], "test") == np.bincount(labels).max() / len(labels)
    assert math.isnan(constant(federation, dataset, [], "test"))


def test_summary_report_and_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """A client that cannot train, before and after the run is resumed; another that cannot be tested."""

    def fails(self: BaseClient, *args: object) -> float:
        if self.client_id == "3":
            raise RuntimeError("no disk")
        return train(self, *args)

    def untested(self: BaseClient, *args: object) -> bool:
        if self.client_id == "4":
            raise RuntimeError("no screen")
        return False

    train = BaseClient.local_training
    monkeypatch.setattr(BaseClient, "local_training", fails)
    monkeypatch.setattr(BaseClient, "personalise", untested)
    keys = config(**KEYS, **{"runs-dir": str(tmp_path), "run-name": "run"})
    run_here({**keys, "rounds": 1}, tmp_path / "run")
    run_here({**keys, "run-name": "", "resume": "run"}, tmp_path / "run")
    summary = read_summary(tmp_path / "run")
    assert summary["failed"] == [{"client": "3", "rounds": 2, "failed": 2, "reason": "RuntimeError: no disk"}]
    first, second, *others = summary["warnings"]
    assert first == "1 of 6 clients failed in every round that asked them to train: client 3: RuntimeError: no disk"
    assert second.endswith("failed in the last evaluation, and do not count in it: client 4: RuntimeError: no screen")
    assert not [told for told in others if "failed" in told]
    (section,) = sections([load_run(tmp_path / "run")])
    assert f"fedavg, seed 1: {first}." in notes(section)
    with caplog.at_level(logging.WARNING, "flwr"):
        tell_warnings(tmp_path / "run")
    assert f"run run: {first}" in caplog.text


@pytest.mark.parametrize(("rate", "told"), [(10.0, True), (0.1, False)])
def test_divergence_that_does_not_reach_nan(rate: float, told: bool, tmp_path: Path) -> None:
    """With the default network, all clients end with the same class."""
    keys: dict[str, Value] = {**KEYS, "model": "mlp", "rounds": 3, "learning-rate": rate, "partitioner": "iid"}
    run_here(config(**keys, **{"runs-dir": str(tmp_path), "run-name": "run"}), tmp_path / "run")
    warnings = read_summary(tmp_path / "run").get("warnings", [])
    assert any("is at chance" in warning for warning in warnings) == told
    assert bool(warnings) == told
