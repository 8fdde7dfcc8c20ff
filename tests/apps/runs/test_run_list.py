"""The list of runs, and going on with one of them, on the command line and from Python."""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.runs import run_list
from florilegium.apps.runs.experiment import read_layers
from florilegium.common.errors import ConfigurationError
from florilegium.common.settings import Value
from florilegium.common.toml import nested
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.apps.cli.test_tables import NARROW, plain
from tests.support import CACHE, config

QUICK = ["--workers", "1", "--set", "num-clients=4", "--set", "model=linear", "--set", f"cache-dir={CACHE}"]


def _call(*words: object, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words], env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout if result.stdout else result.stderr


def _made(
    folder: Path, name: str, age: int, state: str = "completed", damage: Mapping[str, bytes] = {}, **keys: Value
) -> Path:
    """Write the files of a run that began ``age`` seconds ago; those in ``damage`` have another content."""
    path = folder / name
    path.mkdir()
    (path / "config.toml").write_text(tomli_w.dumps(nested(config(**keys))))
    (path / "status.json").write_text(json.dumps({"state": state, "round": 5, "rounds": 5}))
    lines = [{"round": number, "seen": {"accuracy": number / 10}} for number in (0, 5)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file, content in damage.items():
        (path / file).write_bytes(content)
    os.utime(path / "config.toml", (time.time() - age,) * 2)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with runs in all states, and with what is no run."""
    _made(tmp_path, "old", 9, method="fedprox", seed=3)
    _made(tmp_path, "new", 1, state="stopped")
    _made(tmp_path, "torn-config", 2, damage={"config.toml": b"method = 'fedavg"})
    _made(tmp_path, "binary-config", 3, damage={"config.toml": b"\xff\xfe"})
    _made(tmp_path, "torn-metrics", 4, damage={"metrics.jsonl": b'{"round": 0}\n{"rou\n'})
    _made(tmp_path, "odd-metrics", 5, damage={"metrics.jsonl": b"[1, 2]\n"})
    _made(tmp_path, "torn-status", 6, damage={"status.json": b"{"})
    (tmp_path / "report").mkdir()
    return tmp_path


def test_runs_are_listed_alike_on_the_command_line_and_in_python(folder: Path) -> None:
    rows = [line.split("\t") for line in _call("runs", "--runs-dir", folder).splitlines()]
    table = fl.runs(folder)
    assert rows[0] == ["run", *table.columns[1:]]
    assert rows[1] == ["new", "stopped", "fedavg", "digits", "1", "5", "0.5000"]
    assert [row[:2] for row in rows[1:]] == table[["name", "state"]].to_numpy().tolist()
    states = dict(table[["name", "state"]].itertuples(index=False))
    assert states.pop("torn-status") == "unknown"
    assert (states.pop("new"), states.pop("old")) == ("stopped", "completed")
    assert set(states.values()) == {"damaged"}
    assert len(states) == 4


def test_long_files_are_read_from_their_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read at once, the last round and the last evaluation are those of the whole file."""
    path, lines = _made(tmp_path, "run", 1), [{"round": n, "training": {"loss": 1.0}} for n in range(1, 40)]
    lines[20] |= {"evaluation_seconds": 0.1, "seen": {"accuracy": 0.25}}
    for text in ("".join(json.dumps(line) + "\n" for line in lines), json.dumps(lines[20]) + "\n", "", '{"round'):
        for torn in ("", '{"round": 99, "se'):
            (path / "metrics.jsonl").write_text(text + torn)
            whole = [json.loads(line) for line in (text + torn).split("\n")[:-1]]
            for block in (1, 7, 100, 8192):
                monkeypatch.setattr(run_list, "_BLOCK", block)
                found = run_list.listed(path)
                assert found.rounds == (whole[-1]["round"] if whole else 0)
                assert found.value == (0.25 if whole else None)


def test_runs_are_filtered(folder: Path) -> None:
    def names(*words: str) -> list[str]:
        return [line.split("\t")[0] for line in _call("runs", "--runs-dir", folder, *words).splitlines()[1:]]

    assert names("--method", "fedprox") == ["old"]
    assert names("--state", "stopped") == ["new"]
    assert len(names("--state", "damaged")) == 4
    assert names("-n", "1") == ["new"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs", "--state", "complete"], "did you mean 'completed'"),
        (["runs", "--method", "fedproxx"], "did you mean 'fedprox'"),
        (["watch", "odl"], "no run 'odl'.*did you mean 'old'.*Newest runs: new, "),
        (["resume", "odl"], "did you mean 'old'"),
        (["recipes", "mdm-adlt"], "did you mean 'mdm-adult'"),
        (["keys", "fedprox.muu"], "did you mean 'fedprox.mu'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(words: list[str], said: str, folder: Path) -> None:
    here = [] if words[0] in ("recipes", "keys") else ["--runs-dir", str(folder)]
    with pytest.raises(ConfigurationError, match=said):
        _call(*words, *here)


def test_a_recipe_is_shown_with_all_its_tables() -> None:
    name = "pefll-cifar10-n100-rates"
    shown, layers = tomllib.loads(_call("recipes", name)), read_layers(name)
    assert shown["sweeps"] == layers.sweeps
    assert shown["tune"] == layers.tune
    assert shown["variants"].keys() == layers.variants.keys()
    assert not tomllib.loads(_call("recipes", "ppfe-cifar10-s2-fedavg")).keys() & {"variants", "sweeps", "tune"}
    heads, *rows = (line.split("\t") for line in _call("recipes").splitlines())
    assert {row[0]: row[heads.index("tune")] for row in rows}[name] == ", ".join(layers.tune)


def test_no_runs_and_no_folder(tmp_path: Path) -> None:
    assert _call("runs", "--runs-dir", tmp_path) == f"There are no runs in {tmp_path}.\n"
    _made(tmp_path, "one", 1)
    assert _call("runs", "--runs-dir", tmp_path, "--state", "failed") == f"There are no such runs in {tmp_path}.\n"
    with pytest.raises(ConfigurationError, match="there is no folder"):
        _call("runs", "--runs-dir", tmp_path / "nowhere")


def test_of_a_thousand_runs_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    loads = tomllib.loads

    def count(text: str) -> dict[str, Any]:
        parsed.append(len(text))
        return loads(text)

    text = tomli_w.dumps(nested(config()))
    for number in range(1000):
        path = tmp_path / f"20261126-120000-a-method-on-a-dataset-{number:04}"
        path.mkdir()
        (path / "config.toml").write_text(text)
        os.utime(path / "config.toml", (number, number))
    monkeypatch.setattr(run_list.tomllib, "loads", count)
    found = [*run_list.list_folder(str(tmp_path))]
    assert len(parsed) == 1000
    assert max(parsed) < len(text) / 50
    assert [run.name[-4:] for run in found] == [f"{number:04}" for number in reversed(range(1000))]
    parsed.clear()
    lines = plain(_call("runs", "--runs-dir", tmp_path, "-n", "3", env=NARROW))
    assert len(parsed) == 4  # and one more, to know whether there are more
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == [run.name for run in found[:3]]


def test_a_resumed_run_is_the_whole_one(tmp_path: Path) -> None:
    here = ["--runs-dir", str(tmp_path)]
    for name, rounds in (("whole", 3), ("resumed", 1)):
        _call("run", *QUICK, *here, "--set", f"rounds={rounds}", "--set", f"run-name={name}")
    for more in ([], ["--set", "rounds=1"]):
        with pytest.raises(ConfigurationError, match=r"'resumed' is complete.*resume resumed --runs-dir \S+ --set ro"):
            _call("resume", "resumed", *here, *more)
    said = _call("resume", "resumed", "--workers", "1", *here, "--set", "rounds=3")
    assert said.strip() == str(tmp_path / "resumed")
    whole, resumed = (read_checkpoint(tmp_path / name) for name in ("whole", "resumed"))
    assert all((array == resumed.arrays[name]).all() for name, array in whole.arrays.items())
    status = tmp_path / "resumed" / "status.json"
    status.write_text(status.read_text().replace("completed", "stopped"))  # stopped after an earlier end
    _call("resume", tmp_path / "resumed", "--workers", "1")
    assert json.loads(status.read_text())["state"] == "completed"


def test_progress_names_the_method(tmp_path: Path) -> None:
    words = ["compare", "fedavg", "local", *QUICK, "--set", "rounds=1", "--runs-dir", str(tmp_path)]
    shown = CliRunner().invoke(cli, words, env={"COLUMNS": "30"}).stderr
    assert [line for line in shown.splitlines() if " of 2: " in line] == [
        f"{number} of 2: {method} on digits, seed 1 ({path.name})"
        for number, method in enumerate(("fedavg", "local"), start=1)
        for path in tmp_path.glob(f"{method}-digits-*-seed1")
    ]
