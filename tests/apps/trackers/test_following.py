"""Trackers attached to runs, and runs sent later: what a tracker of one's own receives."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
from flwr.app import Message
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.assembly.early_checks import check_early
from florilegium.apps.cli.app import cli
from florilegium.apps.engines.process import InThisProcess
from florilegium.apps.origins.packages import import_path
from florilegium.apps.trackers.following import SENT, numbers
from florilegium.apps.trackers.registry import TRACKERS, check_tracker
from florilegium.apps.trackers.sending import track
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.strategies.folder.metrics_file import read_metrics
from tests.grid import run_app
from tests.support import Value, config

HERE = f"{__name__}:Listening"
KEYS: dict[str, Value] = {"num-clients": 4, "local-epochs": 1, "rounds": 3, "evaluate-every": 1, "tracker": HERE}


class Listening(fl.Tracker):
    """Keeps what it is told."""

    calls: ClassVar[list[tuple[Any, ...]]] = []
    gone: ClassVar[set[str]] = set()

    def knows(self, own: str) -> bool:
        """Return whether the test has not removed the run."""
        return own not in self.gone

    def begin(self, own: str) -> str:
        """Note the call."""
        self.calls.append(("begin", own, self.run))
        return own or f"{self.run.name}-{len(self.calls)}"

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Note the figures."""
        self.calls.append(("log", round, dict(figures)))

    def end(
        self, state: str, summary: Mapping[str, float], files: Sequence[Path], clients: Mapping[str, Sequence[float]]
    ) -> None:
        """Note the outcome."""
        self.calls.append(("end", state, dict(summary), [file.name for file in files], dict(clients)))


class Failing(Listening):
    """Fails in the second round."""

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Fail."""
        super().log(round, figures)
        if round == 2:
            raise OSError("no space left")


class Unusable(Listening):
    """Reports before the run that it cannot be used."""

    @classmethod
    def check(cls) -> None:
        """Fail."""
        raise OSError("no route")


class Missing(Listening):
    """Needs what nobody has."""

    package = "no_such_package"


@pytest.fixture(autouse=True)
def _empty() -> None:
    Listening.calls.clear()
    Listening.gone.clear()


def _run(folder: Path, name: str = "run", **keys: Value) -> Path:
    run_app(config(**{**KEYS, "runs-dir": str(folder), "run-name": name, **keys}))
    return folder / name


def _logged() -> list[tuple[int, dict[str, float]]]:
    return [(call[1], call[2]) for call in Listening.calls if call[0] == "log"]


def _of(line: Mapping[str, Any]) -> dict[str, float]:
    """The expected figures of a line of our own runs, as pandas flattens it."""
    (flat,) = pd.json_normalize({**line}, sep="/").drop(columns="round").to_dict("records")
    return {str(name): value for name, value in flat.items()}


def test_numbers_are_flat_and_nothing_else_is_sent() -> None:
    line = {"a": 1, "b": {"c": 2.5, "d": {"e": math.inf}, "word": "x"}, "yes": True, "none": None, "list": [1]}
    assert numbers(line) == {"a": 1, "b/c": 2.5, "b/d/e": math.inf}


def test_a_run_is_followed_in_the_server(tmp_path: Path) -> None:
    path = _run(tmp_path)
    (_, own, run), *_ = Listening.calls
    assert (own, run.name, run.path, run.project) == ("", "run", path, "florilegium")
    assert run.config["num-clients"] == 4
    assert not any(key.startswith("ppfe.") for key in run.config)
    lines = read_metrics(path)
    assert _logged() == [(line["round"], _of(line)) for line in lines]
    assert [line["round"] for line in lines] == [1, 2, 3]
    _, state, summary, files, clients = Listening.calls[-1]
    written = json.loads((path / "summary.json").read_text())
    assert state == "completed"
    assert summary["final/seen/accuracy"] == written["final"]["seen"]["accuracy"]
    assert summary["bytes_up"] == written["bytes_up"]
    assert files == ["config.toml", "provenance.json", "summary.json", "clients.csv"]
    table = fl.open(path).clients
    assert clients == {"seen/accuracy": pytest.approx(list(table["accuracy"]))}
    assert len(table) == 4


def test_a_resumed_run_goes_on_with_the_same_and_repeats_nothing(tmp_path: Path) -> None:
    def stop(message: Message) -> None:
        if message.metadata.message_type == "train" and message.content["config"]["round"] == 3:
            raise KeyboardInterrupt

    keys = config(**{**KEYS, "runs-dir": str(tmp_path), "run-name": "run"})
    with pytest.raises(KeyboardInterrupt):
        run_app(keys, intercept=stop)
    assert Listening.calls[-1] == ("end", "stopped", {}, ["config.toml", "provenance.json"], {})
    run_app({**keys, "run-name": "", "resume": "run"})
    assert [round for round, _ in _logged()] == [1, 2, 3]
    assert [call[1] for call in Listening.calls if call[0] == "begin"] == ["", "run-1"]
    assert Listening.calls[-1][1] == "completed"


def test_a_run_that_begins_anew_is_another_for_the_tracker(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / SENT).write_text(json.dumps({HERE: {"florilegium": {"own": "old", "round": 9}}}))
    _run(tmp_path)
    assert Listening.calls[0][1] == ""
    assert [round for round, _ in _logged()] == [1, 2, 3]


def test_figures_of_a_round_may_come_in_two_lines(tmp_path: Path) -> None:
    path = _run(tmp_path, tracker="")
    lines = read_metrics(path)[:1]
    (path / "metrics.jsonl").write_text(json.dumps({"round": 1, "training": {"loss": 0.5}}) + "\n")
    assert track(path, HERE).rounds == 1
    (path / "metrics.jsonl").write_text(json.dumps({**lines[0], "training": {"loss": 0.5}}) + "\n")
    assert [track(path, HERE).rounds for _ in range(2)] == [1, 0]
    evaluation = {name: value for name, value in _of(lines[0]).items() if not name.startswith("training/")}
    assert _logged() == [(1, {"training/loss": 0.5}), (1, evaluation)]


def test_a_failing_tracker_is_silenced_and_the_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.WARNING, "flwr"):
        path = _run(tmp_path, tracker=f"{__name__}:Failing")
    warnings = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert len(warnings) == 1
    assert "no space left" in warnings[0]
    assert f"florilegium track {path} --to {__name__}:Failing" in warnings[0]
    assert [round for round, _ in _logged()] == [1, 2]
    assert json.loads((path / "status.json").read_text())["state"] == "completed"
    with pytest.raises(RunError, match="no space left"):
        track(path, f"{__name__}:Failing")


def test_the_engine_process_attaches_it_too(tmp_path: Path) -> None:
    keys = config(**{**KEYS, "runs-dir": str(tmp_path), "rounds": 2})
    rounds: list[int] = []
    engine = InThisProcess(on_evaluation=lambda round, figures: rounds.append(round))
    engine.run(keys, tmp_path / "run", lambda status: None)
    assert [round for round, _ in _logged()] == rounds == [1, 2]
    assert Listening.calls[-1][1] == "completed"


class TestSendingLater:
    def test_once(self, tmp_path: Path) -> None:
        path = _run(tmp_path, tracker="")
        assert not Listening.calls
        words = ["track", "run", "--to", HERE, "--project", "ours", "--runs-dir", str(tmp_path)]
        first, second = (CliRunner().invoke(cli, words) for _ in range(2))
        assert first.output == "3 rounds sent: ours\n"
        assert second.output == "no new rounds: ours\n"
        assert _logged() == [(line["round"], _of(line)) for line in read_metrics(path)]
        assert [call[0] for call in Listening.calls] == ["begin", "log", "log", "log", "end"]
        assert fl.open(path).track(HERE) == 3  # another project

    def test_of_a_run_without_rounds(self, tmp_path: Path) -> None:
        path = _run(tmp_path, tracker="")
        (path / "metrics.jsonl").unlink()
        words = ["track", "run", "--to", HERE, "--runs-dir", str(tmp_path)]
        assert CliRunner().invoke(cli, words).output == "the run has no rounds yet; nothing was sent\n"
        assert not Listening.calls

    def test_again_where_the_place_has_lost_it(self, tmp_path: Path) -> None:
        path = _run(tmp_path)
        assert track(path, HERE).rounds == 0
        Listening.gone.add("run-1")
        assert track(path, HERE).rounds == 3

    def test_of_a_running_run_so_far(self, tmp_path: Path) -> None:
        path = _run(tmp_path, tracker="")
        completed = (path / "status.json").read_text()
        lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
        (path / ".lock").unlink(missing_ok=True)
        (path / "status.json").write_text(json.dumps({"state": "running"}))
        (path / "metrics.jsonl").write_text(lines[0])
        assert track(path, HERE).rounds == 1
        assert Listening.calls[-1] == ("end", "running", {}, ["config.toml", "provenance.json"], {})
        (path / "status.json").write_text(completed)
        (path / "metrics.jsonl").write_text("".join(lines))
        assert track(path, HERE).rounds == 2
        assert [round for round, _ in _logged()] == [1, 2, 3]
        assert Listening.calls[-1][1] == "completed"

    def test_is_refused_while_the_run_itself_sends(self, tmp_path: Path) -> None:
        path = _run(tmp_path, rounds=1)
        (path / ".lock").unlink(missing_ok=True)
        (path / "status.json").write_text(json.dumps({"state": "running"}))
        with pytest.raises(ConfigurationError, match=r"sends to .* itself"):
            track(path, HERE)

    def test_needs_readable_notes(self, tmp_path: Path) -> None:
        path = _run(tmp_path, rounds=1)
        (path / SENT).write_text("{")
        with pytest.raises(RunError, match=r"trackers\.json is damaged"):
            track(path, HERE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorbord", "did you mean 'tensorboard'"),
        (f"{__name__}:Unusable", "cannot be used: OSError: no route"),
        (f"{__name__}:Missing", "needs the package no_such_package: pip install no_such_package"),
        (f"{__name__}:KEYS", "expected a subclass of florilegium.Tracker"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(name: str, words: str, tmp_path: Path) -> None:
    wrong = config(**{**KEYS, "tracker": name, "runs-dir": str(tmp_path / "runs"), "run-name": "run"})
    with pytest.raises(ConfigurationError, match=words):
        check_early(wrong)
    with pytest.raises(ConfigurationError, match=words):
        run_app(wrong)
    assert not (tmp_path / "runs").exists()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("florilegium.apps.trackers.registry.find_spec", lambda name: None)
    for name in TRACKERS.own:
        with pytest.raises(ConfigurationError, match=rf"with its extra \[{name}\]"):
            check_tracker(name)


def test_other_processes_find_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tracker.py").write_text("import florilegium as fl\n\nclass Own(fl.Tracker):\n    log = print\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(tmp_path) in import_path(config(tracker="own_tracker:Own")).split(":")
