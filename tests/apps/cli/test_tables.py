"""Tables of the command line, on a terminal of 80 columns and in a pipe."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from florilegium.apps.cli.app import cli
from florilegium.apps.cli.tables import show
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.recipes import recipe_names
from florilegium.apps.settings.keys import groups
from florilegium.common.settings import Value
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.federation import federate
from tests.support import CACHE, settings

NARROW = {"COLUMNS": "80", "TERM": "xterm", "TTY_COMPATIBLE": "1"}
"""The environment of a terminal of 80 columns."""
KEYS = [key.name for group in groups() for key in group.keys]


def _call(*words: str, env: dict[str, str] = NARROW) -> list[str]:
    result = CliRunner().invoke(cli, list(words), env=env)
    assert result.exit_code == 0, result.output
    return plain(result.stdout)


def plain(output: str) -> list[str]:
    """Return the lines of an output without codes for bold type and colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", output).splitlines()


@pytest.mark.parametrize(
    ("command", "names"),
    [("methods", METHODS), ("keys", KEYS), ("datasets", DATASETS), ("recipes", recipe_names())],
    ids=["methods", "keys", "datasets", "recipes"],
)
def test_lists_fit_a_terminal_and_cut_no_name(command: str, names: Iterable[str]) -> None:
    lines = _call(command)
    assert max(map(cell_len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == [*names]
    piped = [line.split("\t") for line in _call(command, env={})]
    assert {len(row) for row in piped} == {len(piped[0])}
    assert [row[0] for row in piped[1:]] == [*names]


def test_columns_without_room_follow_below(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {**NARROW, "COLUMNS": "30"}.items():
        monkeypatch.setenv(name, value)
    name = "a-name-that-is-longer-than-the-terminal-is-wide"
    show(["name", "n", "what"], [(name, "7", ["a = 1", "b = 2", "my-long-name = 3", "d = 4"]), ("b", "", "")], "title")
    assert plain(capsys.readouterr().out) == [
        "title", "name", name, "    n: 7", "    what: a = 1, b = 2,", "      my-long-name = 3, d = 4", "b",
    ]  # fmt: skip


def test_a_pipe_gets_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    show(["name", "what"], [("a", "x" * 300), ("b", "two\nlines"), ("c", ["1", "2"])], "title")
    assert capsys.readouterr().out == f"name\twhat\na\t{'x' * 300}\nb\ttwo lines\nc\t1, 2\n"


@pytest.mark.parametrize("partitioner", ["iid", "classes"])
def test_a_federation_of_many_classes_fits_a_narrow_terminal(partitioner: str) -> None:
    keys: dict[str, Value] = {
        "dataset": "digits",
        "num-clients": 5,
        "cache-dir": str(CACHE),
        "partitioner": partitioner,
    }
    words = ["partition", *(word for key, value in keys.items() for word in ("--set", f"{key}={value}"))]
    federation, dataset = federate(settings(**keys))
    counts = federation.class_counts(dataset)
    wide = [line.split() for line in _call(*words)[2:]]
    assert [[0 if cell == "·" else int(cell) for cell in row[4:]] for row in wide] == counts.tolist()
    lines = _call(*words, env={**NARROW, "COLUMNS": "60"})
    assert max(map(cell_len, lines[1:])) <= 60
    clients = re.split(r"\n +\d+  seen +", "\n".join(lines))[1:]
    for row, text in zip(counts, clients, strict=True):
        found = [(int(label), int(count)) for label, count in re.findall(r"(\d+): (\d+)", text)]
        assert dict(found) == {label: count for label, count in enumerate(row.tolist()) if count}
        assert [count for _, count in found] == sorted(row[row > 0].tolist(), reverse=True)


def _commands() -> dict[str, click.Command]:
    """Return all commands by their words, such as "device status"."""

    def below(group: click.Group, words: str) -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from below(command, f"{words}{name} ")
            else:
                yield f"{words}{name}", command

    root = typer.main.get_command(cli)
    assert isinstance(root, click.Group)
    return dict(below(root, ""))


class TestJson:
    @pytest.mark.parametrize("command", ["methods", "keys mu", "datasets", "recipes", "partition --set num-clients=3"])
    def test_it_has_what_a_pipe_gets(self, command: str) -> None:
        """The same rows under the same headings, but numbers as numbers and lists as lists."""
        words = command.split() + (["--set", f"cache-dir={CACHE}"] if command.startswith("partition") else [])
        head, *lines = (line.split("\t") for line in _call(*words, env={}))
        rows = json.loads("\n".join(_call(*words, "--json", env={})))
        assert [*rows[0]] == [name.replace(" ", "_") for name in head]
        for row, line in zip(rows, lines, strict=True):
            for value, text in zip(row.values(), line, strict=True):
                if isinstance(value, list):
                    assert ", ".join(value) == text
                elif isinstance(value, str):
                    assert json.dumps(value) == text or re.sub(r"\s+", " ", value) == text
                else:
                    assert value == (None if text == "" else 0 if text == "·" else json.loads(text))

    def test_runs_have_every_figure_with_its_name(self, tmp_path: Path) -> None:
        assert json.loads("\n".join(_call("runs", "--runs-dir", str(tmp_path), "--json"))) == []
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "config.toml").write_text('method = "fedper"\ndataset = "digits"\nseed = 7\n')
        (tmp_path / "a" / "metrics.jsonl").write_text(
            '{"round": 4, "evaluation_seconds": 1, "seen": {"accuracy": 0.12345678}}\n'
        )
        assert json.loads("\n".join(_call("runs", "--runs-dir", str(tmp_path), "--json"))) == [
            {"name": "a", "state": "unknown", "method": "fedper", "dataset": "digits", "seed": 7, "rounds": 4,
             "figure": "accuracy", "value": 0.12345678},
        ]  # fmt: skip

    def test_a_recipe_is_an_object(self) -> None:
        text, told = (_call("recipes", "fedgtst-mnist", *more, env={}) for more in ([], ["--json"]))
        assert json.loads("\n".join(told)) == tomllib.loads("\n".join(text))

    def test_names_of_files_are_told_aside(self, tmp_path: Path) -> None:
        words = ["partition", "--set", f"cache-dir={CACHE}", "--save", str(tmp_path / "split.json"), "--json"]
        result = CliRunner().invoke(cli, words)
        assert [row["client"] for row in json.loads(result.stdout)] == [*range(20)]
        assert result.stderr.strip() == str(tmp_path / "split.json")

    def test_every_list_has_it(self) -> None:
        """A command whose code shows a table and nothing else has ``--json``; the others are named here, with why."""
        other = {
            "check": "several tables and an estimate",
            "device policy explain": "the exit status says it",
            **dict.fromkeys(("run", "compare", "sweep", "tune", "report", "board"), "its folder has the tables as CSV"),
            **dict.fromkeys(("flamby", "ledger"), "writes a page"),
        }
        showing = {
            name for name, command in _commands().items()
            if re.search(r"\bshow\(|_show_clients\(", inspect.getsource(inspect.unwrap(command.callback)))  # type: ignore[arg-type]
        }  # fmt: skip
        having = {name for name, command in _commands().items() if any(one.name == "json" for one in command.params)}
        assert having == showing - other.keys()
        assert {"methods", "recipes", "runs", "datasets", "keys", "device status", "device log show"} <= having
