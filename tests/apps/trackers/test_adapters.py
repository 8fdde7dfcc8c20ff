"""TensorBoard, MLflow and Weights & Biases: what their own readers find is what ``metrics.jsonl`` says."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilegium.apps.trackers.following import numbers
from florilegium.apps.trackers.registry import check_tracker
from florilegium.apps.trackers.sending import track
from florilegium.common.errors import ConfigurationError
from florilegium.strategies.folder.run_folder import RunFolder
from tests.support import config

ACCURACIES = [0.25, 0.5, 1.0, 0.5]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of three evaluations, one of them with a figure that is not a number."""
    path = tmp_path / "runs" / "one"
    keys = config(**{"runs-dir": str(tmp_path / "runs"), "run-name": "one", "fedprox.mu": 0.25, "method": "fedprox"})
    folder = RunFolder(path, keys, "fedprox")
    folder.create({})
    for round in (0, 2, 4):
        loss = float("nan") if round == 2 else 1 / (round + 3)
        training = {"loss": loss, "seconds": {"train": 0.125 * round}}
        folder.record({"round": round, "bytes_up": 123457 * round, "training": training, "seen": {"accuracy": 0.1}})
    rows = [{"client": str(i), "group": "seen", "accuracy": value} for i, value in enumerate(ACCURACIES)]
    folder.write_clients(rows)
    folder.write_summary({"method": "fedprox", "rounds": 4, "final": {"seen": {"accuracy": 0.1}}})
    folder.status("completed")
    return path


def _expected(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return round and value of every figure, by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in numbers(line).items():
            if name != "round":
                found.setdefault(name, []).append((line["round"], value))
    assert len(found) == 4
    assert all(len(points) == 3 for points in found.values())
    return found


def _sent_in_two_parts(run: Path, name: str, project: str = "") -> list[int]:
    """Send a run after two of its three evaluations, again when it has completed, and once more; return the rounds."""
    files = [run / "metrics.jsonl", run / "status.json"]
    metrics, status = (file.read_text() for file in files)
    files[0].write_text("".join(metrics.splitlines(keepends=True)[:2]))
    files[1].write_text(json.dumps({"state": "stopped"}))
    rounds = [track(run, name, project).rounds]
    files[0].write_text(metrics)
    files[1].write_text(status)
    return [*rounds, *(track(run, name, project).rounds for _ in range(2))]


def test_tensorboard(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert _sent_in_two_parts(run, "tensorboard") == [2, 1, 0]
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    expected = _expected(run) | {"summary/rounds": [(4, 4)], "summary/final/seen/accuracy": [(4, 0.1)]}
    assert set(events.Tags()["scalars"]) == expected.keys()
    for name, points in expected.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert [step for step, _ in found] == [step for step, _ in points]
        np.testing.assert_array_equal([x for _, x in found], np.float32([x for _, x in points]))  # NaN equals NaN
    (histogram,) = events.Histograms("clients/seen/accuracy")
    counted = histogram.histogram_value
    assert (counted.num, counted.min, counted.max, counted.sum) == (4, 0.25, 1.0, sum(ACCURACIES))
    started = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"fedprox.mu" in started
    assert b"ppfe.ranks" not in started


def test_mlflow(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "files").as_uri())
    with pytest.raises(ConfigurationError, match="MLFLOW_ALLOW_FILE_STORE"):
        check_tracker("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to set up
    _check_mlflow(run, (tmp_path / "files").as_uri())


@pytest.mark.long
def test_mlflow_in_a_database_beside_the_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    _check_mlflow(run, f"sqlite:///{run.parent}/mlruns/mlflow.db")
    assert list((run.parent / "mlruns" / "artifacts" / "ours").rglob("clients.csv"))


def _check_mlflow(run: Path, uri: str) -> None:
    assert _sent_in_two_parts(run, "mlflow", "ours") == [2, 1, 0]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("ours")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("one", "FINISHED")
    assert found.data.params["fedprox.mu"] == "0.25"
    assert "ppfe.ranks" not in found.data.params
    expected = _expected(run) | {"summary/rounds": [(4, 4)], "summary/final/seen/accuracy": [(4, 0.1)]}
    assert found.data.metrics.keys() == expected.keys()
    for name, points in expected.items():
        history = sorted((metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name))
        np.testing.assert_array_equal(history, points)
    artifacts = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert artifacts == {"config.toml", "summary.json", "clients.csv"}
    client.delete_run(found.info.run_id)
    assert track(run, "mlflow", "ours").rounds == 3


def test_a_password_is_not_kept(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from florilegium.apps.trackers.base import TrackedRun
    from florilegium.apps.trackers.mlflow import MLflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ann:secret@example.org/mlflow")
    assert MLflow(TrackedRun(run, "ours", {})).place == "https://example.org/mlflow, experiment ours"


@pytest.mark.long
def test_wandb_offline(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(run.parent))
    monkeypatch.delenv("WANDB_DIR", raising=False)
    assert [track(run, "wandb").rounds for _ in range(2)] == [3, 0]
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    records = list(_records(file))
    (begun,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (begun.display_name, begun.project) == ("one", "florilegium")
    keys = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in begun.config.update}
    assert keys["fedprox.mu"] == 0.25
    assert "ppfe.ranks" not in keys
    found: dict[str, list[tuple[int, Any]]] = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                value = json.loads(item.value_json)
                found.setdefault("/".join(item.nested_key) or item.key, []).append((record.history.step.num, value))
    for name, points in _expected(run).items():
        np.testing.assert_array_equal(found[name], points)
    (values,), (bins,) = found["clients/seen/accuracy/values"], found["clients/seen/accuracy/bins"]
    assert (values[0], sum(values[1]), bins[1][0], bins[1][-1]) == (4, 4, 0.25, 1.0)
    last: dict[str, Any] = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            last |= {
                "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.summary.update
            }
    assert (last["summary/rounds"], last["summary/final/seen/accuracy"]) == (4, 0.1)
    (artifact,) = [record.artifact for record in records if record.WhichOneof("record_type") == "artifact"]
    assert {entry.path for entry in artifact.manifest.contents} == {"config.toml", "summary.json", "clients.csv"}


def _records(file: Path) -> Iterator[Any]:
    """Yield what an offline run of Weights & Biases holds: protocol buffers in LevelDB's format of logs."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, data, whole = 32768, file.read_bytes(), b""
    place = 7  # after ":W&B", a magic number and the version
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record
