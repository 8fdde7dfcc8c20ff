"""What carried a run out, in its folder; and runs that are carried out again."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.engines.process import InThisProcess
from florilegium.apps.engines.progress import silent
from florilegium.apps.origins import provenance
from florilegium.apps.origins.provenance import COMMAND_VARIABLE, command, differences
from florilegium.apps.runs.experiment import run_experiment
from florilegium.apps.runs.reproduce import compare_runs, reproduce
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.strategies.folder.attempts import read_provenance
from tests.grid import run_app
from tests.support import config

KEYS: dict[str, Value] = {
    "model": "linear", "num-clients": 4, "rounds": 3, "evaluate-every": 2, "local-epochs": 1,
}  # fmt: skip
Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Carry out a run in this process under a name."""

    def carry_out(name: str, **keys: Value) -> Path:
        named = {} if "resume" in keys else {"run-name": name}
        chosen = config(**{**KEYS, **keys, **named, "runs-dir": str(tmp_path)})
        return run_experiment(InThisProcess(), chosen, silent)

    return carry_out


def _edit(path: Path, change: Callable[[Any], None]) -> None:
    """Change the contents of a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


class TestProvenance:
    def test_every_attempt_is_a_part(self, run: Run) -> None:
        began = datetime.now(UTC).replace(microsecond=0)
        started = time.monotonic()
        path = run("twice")
        run("twice", resume="twice", rounds=4)
        first, second = read_provenance(path)
        assert began <= datetime.fromisoformat(first["start"]) <= datetime.fromisoformat(second["start"])
        assert 0 < first["seconds"] + second["seconds"] < time.monotonic() - started
        assert (first["engine"], first["workers"]) == ("process", 1)
        assert first["versions"]["torch"] == torch.__version__.partition("+")[0]
        assert first["versions"].keys() >= {"python", "florilegium", "commit", "modified", "code", "flwr", "numpy"}
        assert not first["versions"].keys() & {"ray", "opacus"}
        assert first["machine"]["threads"] >= 1
        assert first["machine"]["memory_gb"] > 0.5

    def test_names_of_user_and_host_are_not_in_it(self, run: Run) -> None:
        path = run("quiet", rounds=1)
        words = (path / "provenance.json").read_text().replace("florilegium", "")
        assert not [name for name in (getpass.getuser(), socket.gethostname(), str(Path.home())) if f'"{name}' in words]
        assert str(Path.cwd()) not in words

    def test_an_interrupted_part_lasts_until_its_last_status(self, tmp_path: Path) -> None:
        keys = config(**{**KEYS, "runs-dir": str(tmp_path), "checkpoint-every": 1, "run-name": "killed"})

        def die(message: Message) -> None:
            if message.content.get("config", {}).get("round") == 2:
                raise SystemExit

        with pytest.raises(SystemExit):
            run_app(keys, intercept=die)
        path = tmp_path / "killed"
        _edit(path / "provenance.json", lambda parts: parts[0].pop("seconds"))  # as if by SIGKILL
        start = datetime.fromisoformat(read_provenance(path)[0]["start"]).timestamp()
        os.utime(path / "status.json", (start + 77, start + 77))
        assert read_provenance(path)[0]["seconds"] == 77
        run_app({**keys, "run-name": "", "resume": "killed"})
        first, second = json.loads((path / "provenance.json").read_text())
        assert first["seconds"] == 77
        assert second["seconds"] < 60

    @pytest.mark.parametrize(("told", "engine", "said"), [
        ("", "flower", ["flwr", "run"]),
        ('{"command": ["florilegium", "run"], "commit": "abc-dirty"}', "ray", ["florilegium", "run"]),
    ])  # fmt: skip
    def test_processes_of_flower_are_told_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, engine: str, said: list[str]
    ) -> None:
        monkeypatch.setenv(COMMAND_VARIABLE, told)
        run_app(config(**{**KEYS, "rounds": 1, "runs-dir": str(tmp_path), "run-name": "of-flower"}), nodes=2)
        (part,) = read_provenance(tmp_path / "of-flower")
        assert (part["engine"], part["workers"], part["command"]) == (engine, 2, said)
        assert "ray" in part["versions"]
        assert (part["versions"]["commit"], part["versions"]["modified"]) == ("abc" * bool(told), bool(told))

    @pytest.mark.parametrize(("argv", "said"), [
        (["/home/me/bin/florilegium", "run", "--set", "a=/home/me"], ["florilegium", "run", "--set", "a=~"]),
        (["/x/florilegium/__main__.py", "run", "/home/me/r.toml"], ["python", "-m", "florilegium", "run", "~/r.toml"]),
        (["florilegium", "--runs-dir=/home/me/r", "b='/home/me'"], ["florilegium", "--runs-dir=~/r", "b='~'"]),
        (["florilegium", "/home/men", "/data/home/me", "/home/me.old"],
         ["florilegium", "/home/men", "/data/home/me", "/home/me.old"]),
        (["/home/me/mine.py", "--secret"], ["python", "mine.py"]),
        (["-c"], ["python"]),
        ([""], ["python"]),
    ])  # fmt: skip
    def test_commands(self, monkeypatch: pytest.MonkeyPatch, argv: list[str], said: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setenv("HOME", "/home/me")
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
        assert command() == said

    def test_a_damaged_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "provenance.json").write_text('[{"sta')
        with pytest.raises(RunError, match=r"provenance\.json is damaged"):
            read_provenance(tmp_path)


def test_differences_are_those_that_matter(tmp_path: Path) -> None:
    versions = {"torch": "2.3", "code": "aa", "commit": "c1", "florilegium": "0.2.0", "modified": False}
    part = {"command": ["x"], "engine": "process", "workers": 2, "versions": versions, "machine": {"processor": "A"}}
    other = {**part, "command": ["y"], "workers": 4, "versions": {**versions, "code": "bb", "modified": True}}
    for name, parts in {"a": [part], "same": [{**part, "seconds": 1}], "b": [part, other], "old": None}.items():
        (tmp_path / name).mkdir()
        if parts is not None:
            text = json.dumps([{"start": "2026-01-01T00:00:00+00:00", "seconds": 2, **one} for one in parts])
            (tmp_path / name / "provenance.json").write_text(text)
    assert differences(tmp_path / "a", tmp_path / "same") == []
    assert differences(tmp_path / "a", tmp_path / "b") == [
        "number of workers: 2 in a; 2 then 4 in b",
        "code of florilegium: 0.2.0 aa (commit c1) in a; 0.2.0 aa (commit c1) then 0.2.0 bb (commit c1, modified) in b",
    ]
    old = ["unknown for old, which an earlier version carried out"]
    assert differences(tmp_path / "old", tmp_path / "a") == old
    assert differences(tmp_path / "old") == []


class TestReproduce:
    def test_an_unchanged_run_is_identical(self, run: Run) -> None:
        first = run("first", **{"unseen-fraction": 0.25})
        again, found = reproduce(first, silent)
        assert again == first.parent / "first-again"
        # Per evaluation (rounds 2, 3) and at the end: five figures for each of two groups, and bytes both ways. At the
        # end also seed, rounds, clients and nodes. Of each client: two figures, two numbers of examples.
        assert str(found) == f"identical: {3 * (5 * 2 + 2) + 4 + 4 * 4} figures"
        assert reproduce(first, silent)[0].name == "first-again-2"

    def test_each_figure_that_differs_is_named_with_reasons(self, run: Run) -> None:
        first = run("first")
        lines = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
        accuracy, loss = lines[1]["seen"]["accuracy"], lines[2]["seen"]["loss"]
        lines[1]["seen"]["accuracy"] += 0.01
        lines[2]["seen"]["loss"] *= 1 + 1e-8
        (first / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        _edit(first / "provenance.json", lambda parts: parts[0]["versions"].update(torch="1.0"))
        _edit(first / "origins.json", lambda hashes: hashes.update(dataset="another"))
        done = CliRunner().invoke(cli, ["reproduce", "first", "--runs-dir", str(first.parent)])
        assert done.exit_code == 1
        shown = done.output
        assert f"round 2, seen, accuracy: {accuracy + 0.01:.10g}, now {accuracy:.10g}" in shown
        assert "1 figure differs, " in shown
        assert f"{loss:.10g}" not in shown
        assert "possible reason: torch: 1.0 in first" in shown
        assert "possible reason: dataset: it has changed since" in shown

    def test_rounding_is_no_difference(self, run: Run) -> None:
        first, second = run("first", rounds=1), run("second", rounds=1)
        _edit(second / "summary.json", lambda summary: summary["final"]["seen"].update(
            loss=summary["final"]["seen"]["loss"] * (1 + 5e-7)
        ))  # fmt: skip
        found = compare_runs(first, second)
        assert found.same
        assert "equal up to rounding" in str(found)
        assert "largest relative difference 5.0e-07" in str(found)
        _edit(second / "summary.json", lambda summary: summary["final"]["seen"].pop("loss"))
        assert compare_runs(first, second).differing == ["final, seen, loss: only in first"]

    def test_a_run_that_its_user_ended_is_repeated_as_far(self, tmp_path: Path) -> None:
        keys = config(**{**KEYS, "rounds": 9, "evaluate-every": 2, "runs-dir": str(tmp_path), "run-name": "ended"})
        first = run_experiment(
            InThisProcess(on_evaluation=lambda server_round, figures: server_round == 4), keys, silent
        )
        again, found = reproduce(first, silent)
        assert json.loads((again / "summary.json").read_text())["rounds"] == 4
        assert found.same

    def test_a_run_of_an_earlier_version_is_repeated_with_as_many_workers(self, run: Run) -> None:
        first = run("old", rounds=1)
        (first / "provenance.json").unlink()
        _, found = reproduce(first, silent)
        assert "identical" in str(found)
        assert "note: old was carried out by an earlier version: its engine, machine and versions are unknown" in str(
            found
        )

    def test_noise_is_said_to_be_unrepeatable(self, run: Run) -> None:
        private: dict[str, Value] = {
            "privacy.unit": "client", "privacy.noise-multiplier": 1.0, "weighting": "uniform", "rounds": 1,
        }  # fmt: skip
        _, found = reproduce(run("private", **private), silent)
        assert not found.same
        assert "note: privacy.unit = 'client': noise comes from no seed" in str(found)

    def test_runs_on_devices_and_unfinished_runs_are_refused(self, run: Run) -> None:
        path = run("far", rounds=1)
        _edit(path / "provenance.json", lambda parts: parts[0].update(engine="devices"))
        with pytest.raises(ConfigurationError, match="real devices"):
            reproduce(path, silent)
        (path / "summary.json").write_text("{")
        with pytest.raises(RunError, match=r"summary\.json is damaged"):
            reproduce(path, silent)
        (path / "summary.json").unlink()
        with pytest.raises(RunError, match="has not completed; resume it: florilegium resume far"):
            reproduce(path, silent)

    def test_the_methods_own_numbers_and_those_of_clients_count(self, run: Run) -> None:
        first, second = run("first", rounds=1), run("second", rounds=1)
        own = {"tau": [0.25, 0.75], "course": [{"round": 1, "cost": 3.0, "seconds": 5.0}], "k": 2, "feature": "label"}
        for path, tau in ((first, 0.75), (second, 0.8)):
            changed = {**own, "tau": [0.25, tau]}
            _edit(
                path / "summary.json",
                lambda summary, tau=tau, changed=changed: summary.update(mdm=changed, seconds=tau),
            )
        assert compare_runs(first, second).differing == ["mdm, tau, 1: 0.75, now 0.8"]
        lines = (second / "clients.csv").read_text().splitlines(keepends=True)
        (second / "clients.csv").write_text("".join([*lines[:-1], lines[-1].replace("seen,", "seen,1", 1)]))
        assert "client 3 (seen), train examples: " in compare_runs(first, second).differing[1]
        (second / "clients.csv").unlink()
        found = compare_runs(first, second)
        assert found.differing[1:] == [line for line in found.differing if line.endswith(": only in first")]
        assert len(found.differing) == 1 + 4 * 4

    def test_runs_without_figures_are_said_to_have_none(self, run: Run) -> None:
        path = run("bare", rounds=1)
        for name in ("clients.csv", "metrics.jsonl"):
            (path / name).unlink()
        _edit(path / "summary.json", lambda summary: summary.update(final={}))
        found = str(compare_runs(path, path))
        assert "note: bare has no figures of an evaluation or of its method; only counts were compared" in found


class TestGpus:
    def test_the_driver_names_them_without_cuda_being_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that has started CUDA cannot fork workers that use a GPU."""
        self._describe(tmp_path, monkeypatch, "NVIDIA H200", "NVIDIA H200")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert provenance._gpus(torch.device("cuda"), every=False) == ["NVIDIA H200"]
        assert provenance._gpus(torch.device("cuda"), every=True) == ["NVIDIA H200"] * 2
        assert not torch.cuda.is_initialized()

    def test_pytorch_tells_which_of_several_models_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._describe(tmp_path, monkeypatch, "NVIDIA H200", "NVIDIA T4")
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"the one that {device} is")
        assert provenance._gpus(torch.device("cuda:1"), every=False) == ["the one that cuda:1 is"]

    def _describe(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *models: str) -> None:
        for number, model in enumerate(models):
            (folder / str(number)).mkdir()
            (folder / str(number) / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 41\n")
        monkeypatch.setattr(provenance, "_DRIVER", folder)
