"""What training did in every round: the entry ``training`` of ``metrics.jsonl``, against plain NumPy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.clients.core.wire import Reply
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.strategies.core.round_record import RoundRecord
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.folder.metrics_file import MetricsFile, read_evaluations, read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs, timeless

KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 4, "participation": 1.0, "rounds": 2, "evaluate-every": 0, "checkpoint-every": 1,
    "learning-rate": 0.1, "learning-rate-decay": 0.5, "local-steps": 1, "batch-size": 1000, "momentum": 0.0,
}  # fmt: skip


def _replies(runs: Runs, phase: str = "train") -> list[Reply]:
    """Return the nodes' replies to the requests of a phase."""
    pairs = zip(runs.grid.sent, runs.grid.received, strict=True)
    return [Reply.unpack(got.content) for asked, got in pairs if asked.content.get("config", {}).get("phase") == phase]


class TestEntry:
    def test_numbers_are_those_of_the_replies(self, tmp_path: Path) -> None:
        """With a client per node, a reply's sum is wᵢ·(returned − sent); after one step of SGD that is −wᵢ·η·g."""
        runs = Runs(tmp_path, KEYS)
        line = read_metrics(runs("one", nodes=4, rounds=1))[-1]
        replies, entry = _replies(runs), line["training"]
        weights = [reply.metrics["weight"][0] for reply in replies]
        sums = [np.concatenate([array.ravel() for array in reply.arrays.values()]) for reply in replies]
        norms = [np.linalg.norm(total) / weight for total, weight in zip(sums, weights, strict=True)]
        assert entry["loss"] == pytest.approx(
            np.average([reply.metrics["loss"][0] for reply in replies], weights=weights)
        )
        assert entry["client_update_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
        assert entry["gradient_norm"] == pytest.approx(np.mean(norms) / 0.1, rel=1e-5)
        assert entry["update_norm"] == pytest.approx(np.linalg.norm(sum(sums)) / sum(weights), rel=1e-5)
        assert (entry["clients"], entry["failed"], entry["learning_rate"]) == (4, 0, 0.1)
        assert entry["bytes_down"] == line["bytes_down"] == sum(reply.metrics["bytes-down"][0] for reply in replies)
        assert entry["bytes_up"] == line["bytes_up"] > 0
        assert entry["seconds"].keys() == {"train", "server"}
        assert sum(entry["seconds"].values()) == pytest.approx(line["seconds"], abs=2e-3)

    def test_later_rounds_count_for_themselves(self, tmp_path: Path) -> None:
        """The learning rate is halved; the gradient is clipped, but its norm is recorded as it was."""
        runs = Runs(tmp_path, {**KEYS, "decay-rounds": 1, "max-grad-norm": 1e-3})
        first, second = read_metrics(runs("two"))
        assert second["training"]["learning_rate"] == 0.05
        assert second["training"]["client_update_norm"] == pytest.approx(0.05 * 1e-3, rel=1e-3)
        assert second["training"]["gradient_norm"] > 0.1
        assert second["bytes_up"] == first["bytes_up"] + second["training"]["bytes_up"]
        assert "seen" not in first
        assert [line["round"] for line in read_evaluations(tmp_path / "two")] == [2]

    def test_a_method_with_more_exchanges_has_the_seconds_of_each(self, tmp_path: Path) -> None:
        entry = read_metrics(Runs(tmp_path, KEYS)("hyper", method="pefll", **{
            "pefll.hidden-width": 4, "pefll.descriptor-size": 3, "server-learning-rate": 0.1,
        }))[-1]["training"]  # fmt: skip
        assert entry["seconds"].keys() == {"describe", "adapt", "embed", "server"}
        assert entry["loss"] > 0
        assert entry["update_norm"] > 0
        assert entry["clients"] == 4

    def test_a_clustering_has_no_loss_or_learning_rate(self, tmp_path: Path) -> None:
        points: dict[str, Value] = {
            "method": "server-lloyds", "model": "centers", "dataset": "gaussian-mixture", "partitioner": "iid",
            "num-clients": 4, "samples-per-client": 30, "server-examples": 60, "server-ood-examples": 20, "rounds": 2,
        }  # fmt: skip
        path = Runs(tmp_path, points)("points")
        entry = read_metrics(path)[-1]["training"]
        assert not entry.keys() & {"loss", "learning_rate", "gradient_norm", "client_update_norm"}
        assert entry["clients"] == 2
        assert entry["update_norm"] > 0

    @pytest.mark.parametrize("privacy", [
        {"privacy.unit": "client", "privacy.noise-multiplier": 0.5, "weighting": "uniform"},
        {"privacy.unit": "example", "privacy.noise-multiplier": 0.5, "batch-size": 10},
    ])  # fmt: skip
    def test_private_clients_send_no_norms(self, tmp_path: Path, privacy: dict[str, Value]) -> None:
        runs = Runs(tmp_path, KEYS)
        entry = read_metrics(runs("private", **{"rounds": 1, **privacy}))[-1]["training"]
        names = {name for reply in _replies(runs) for name in reply.metrics}
        assert names - {"epsilon"} == {"num-examples", "weight", "bytes-down", "bytes-up", "loss"}
        assert not entry.keys() & {"gradient_norm", "client_update_norm"}
        assert entry["update_norm"] > 0  # of the model, which is released anyway

    def test_means_skip_what_is_no_number(self) -> None:
        metrics = {"weight": [1.0, 3.0, 1.0], "loss": [1.0, 2.0, math.inf], "gradient-norm": [math.nan, 4.0, 6.0]}
        outcome = Outcome(["a", "b", "c"], {}, {name: np.array(values) for name, values in metrics.items()}, {"d": "x"})
        record = RoundRecord()
        record.add("train", 0.5, ["a", "b", "c", "d"], outcome, evaluation=False)
        record.add("train", 0.25, ["a", "b"], Outcome([], {}, {}, {"a": "x", "b": "x"}), evaluation=False)
        entry = record.entry(1.0, 0.1, {}, {})
        assert entry == {
            "loss": 7 / 4, "learning_rate": 0.1, "clients": 4, "failed": 3, "gradient_norm": 5.0,
            "seconds": {"train": 0.75, "server": 0.25},
        }  # fmt: skip

    def test_nothing_is_reported_where_nothing_was_trained(self) -> None:
        entry = RoundRecord().entry(0.0, 0.1, {"w": np.zeros(2)}, {"w": np.full(2, np.inf)})
        assert entry == {"clients": 0, "failed": 0, "seconds": {"server": 0.0}}
        json.dumps(entry, allow_nan=False)


class TestFile:
    def test_a_torn_line_is_ignored_and_cut_at_resume(self, tmp_path: Path) -> None:
        runs = Runs(tmp_path, {**KEYS, "rounds": 3})
        whole, torn = runs("whole"), runs("torn", rounds=2)
        for tail in ('{"round": 3, "seco', '{"round": 3}', "\0\0\0\n"):
            file = torn / "metrics.jsonl"
            file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]) + tail)
            assert [line["round"] for line in read_metrics(torn)] == [1, 2]
        runs("torn", resume="torn")
        assert timeless(torn)[2] == timeless(whole)[2]
        assert read_checkpoint(torn).round == 3

    def test_a_line_damaged_before_the_last_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
        with pytest.raises(RunError, match="damaged in line 2"):
            read_metrics(tmp_path)

    def test_lines_are_appended_and_not_rewritten(self, tmp_path: Path) -> None:
        file, written = MetricsFile(tmp_path), tmp_path / "metrics.jsonl"
        line: dict[str, Any] = {"training": {"loss": 0.5}}
        file.add({"round": 1, **line})
        before = written.stat().st_ino
        file.add({"round": 2, **line})
        assert written.stat().st_ino == before
        file.add({"round": 2, "evaluation_seconds": 0.1, "seen": {"accuracy": 1.0}})  # evaluated once more
        assert [sorted(line) for line in read_metrics(tmp_path)] == [
            ["round", "training"], ["evaluation_seconds", "round", "seen", "training"],
        ]  # fmt: skip
        assert [line["round"] for line in file.evaluations] == [2]
        file.cut(after=1)
        assert [line["round"] for line in read_metrics(tmp_path)] == [1]
        assert not file.evaluations
