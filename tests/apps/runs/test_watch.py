"""The server's counters, as files and by HTTP, and the page that shows a run."""

from __future__ import annotations

import io
import socket
import urllib.request
from pathlib import Path

import pytest
from flwr.app import Message
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from florilegium.apps.runs.pace import in_words
from florilegium.apps.runs.watch import watch
from florilegium.clients.core.base import Answer
from florilegium.clients.core.phases import phase
from florilegium.clients.fedavg import FedAvgClient
from florilegium.common.errors import RunError
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.folder.claim import read_status
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.runs import Runs

KEYS: dict[str, Value] = {
    "method": "fedavg", "model": "linear", "num-clients": 5, "participation": 1.0, "rounds": 3, "local-epochs": 1,
    "evaluate-every": 2,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Return what carries out runs in this process; client 3 fails in round 2."""
    honest = FedAvgClient.train

    def train(client: FedAvgClient, arrays: Arrays) -> Answer:
        if (client.client_id, client.round) == ("3", 2):
            raise OSError("no space left on device")
        return honest(client, arrays)

    monkeypatch.setattr(FedAvgClient, "train", phase(train))
    return Runs(tmp_path, KEYS)


def _numbers(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name.removeprefix("florilegium_"), sample.labels.get("phase", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_was_counted_is_what_was_sent(run: Runs) -> None:
    """By the messages; of the arrays 64 × 10 + 10 float32 numbers, to every client that succeeds and back."""
    path = run("run")
    found = _numbers((path / "metrics.prom").read_text())
    asked = [m for m in run.grid.sent if m.metadata.message_type == "train"]
    assert found["exchanges_total", "train"] == 3
    assert found["clients_asked_total", "train"] == sum(len(m.content["config"]["clients"]) for m in asked) == 15
    assert found["clients_failed_total", "train"] == 1
    assert found["bytes_down_total", "train"] == found["bytes_up_total", "train"] == 14 * 4 * 650
    assert (found["exchanges_total", "test"], found["clients_asked_total", "test"]) == (2, 10)
    assert found["exchange_seconds_total", "train"] > 0
    assert (found["round", ""], found["rounds", ""], found["clients", ""]) == (3, 3, 5)


def test_numbers_can_be_read_while_a_run_goes_on(run: Runs) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen: list[float] = []

    def look(message: Message) -> None:
        if message.metadata.message_type == "train":
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                seen.append(_numbers(page.read().decode()).get(("round", ""), 0.0))

    run("run", nodes=1, intercept=look, **{"metrics-port": port})
    assert seen == [0, 1, 2]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_run_on_one_page(run: Runs) -> None:
    path = run("run")
    text = io.StringIO()
    watch(path, Console(file=text, width=120), 2.0)
    shown = text.getvalue()
    assert [line["training"]["failed"] for line in read_metrics(path)] == [0, 1, 0]
    loss = read_metrics(path)[-1]["training"]["loss"]
    assert f"run: completed, round 3 of 3, 5 clients, training loss {loss:.4f}" in shown
    assert "skipped clients: 1" in shown
    assert "OSError: no space left on device" in shown
    assert "most often: 3 (1)" in shown
    assert "evaluated in round 3" in shown
    assert "accuracy of the seen clients, by round" in shown  # of rounds 2 and 3
    lines = read_metrics(path)
    pace = (5 - 1 + 5) / (lines[-1]["seconds"] - lines[0]["seconds"])  # rounds 2 and 3; client 3 failed in one
    assert f"{pace:.3g} clients a second" in shown
    assert "left, until" not in shown


def test_a_running_run_has_an_expected_end(run: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run("run")
    status = {**read_status(path), "state": "running", "rounds": 3003}
    monkeypatch.setattr("florilegium.apps.runs.progress.read_status", lambda run: status)
    text = io.StringIO()
    watch(path, Console(file=text, width=120), 0)
    lines = read_metrics(path)
    left = in_words((lines[-1]["seconds"] - lines[0]["seconds"]) / 2 * 3000)
    assert f"clients a second, {left} left, until about " in text.getvalue()


def test_what_is_no_run_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not the folder of a run that has begun"):
        watch(tmp_path, Console(), 0)
