"""The help of the command line: groups, an example of every command, and what the shell completes."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.cli.options import RUN_SAYS, said
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.recipes import recipe_names
from florilegium.partitions.datasets import DATASETS
from tests.processes import ROOT

TOP = typer.main.get_command(cli)
GROUPS = {
    "Run": ["run", "resume", "reproduce", "compare", "sweep", "tune", "new", "app", "board"],
    "Inspect": [
        "watch", "report", "runs", "predict", "export", "personalise", "transfer", "methods", "recipes", "keys",
        "track",
    ],
    "Data": ["datasets", "partition", "fleet", "pictures", "speech", "census", "schema", "split"],
    "Devices": ["device"],
    "Privacy": ["privacy", "audit"],
    "Studies": [
        "pareto", "descriptors", "embed", "hyperparameters", "norms", "heterogeneity", "recovery", "fidelity", "ledger",
    ],
}  # fmt: skip


def _commands(command: click.Command, *words: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        for name, own in command.commands.items():
            yield from _commands(own, *words, name)
    else:
        yield words


COMMANDS = [*_commands(TOP)]


def test_commands_are_listed_in_groups() -> None:
    shown = CliRunner().invoke(cli, ["--help"], env={"TERMINAL_WIDTH": "80"}).output
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if line.startswith("╭─ "):
            group = found.setdefault(line.split()[1], [])
        elif line.startswith("│ ") and line[2] not in " -":
            group.append(line.split()[1])
    assert {group: found[group] for group in GROUPS if group in found} == GROUPS
    assert [*found] == ["Options", *GROUPS]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_that_parses(words: tuple[str, ...]) -> None:
    command, context = TOP, click.Context(TOP, info_name="florilegium")
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    assert command.epilog is not None
    label, *typed = shlex.split(command.epilog)
    assert (label, tuple(typed[: len(words) + 1])) == ("Example:", ("florilegium", *words))
    command.make_context(words[-1], typed[len(words) + 1 :], parent=context)


def test_the_example_is_shown() -> None:
    shown = CliRunner().invoke(cli, ["compare", "--help"]).output
    assert "\n Example: florilegium compare fedavg fedprox local --set rounds=20" in shown


def test_the_shell_completes_names_without_pytorch(tmp_path: Path) -> None:
    for run in ("first", "second", "other"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "config.toml").touch()
    typed = ["run ppfe-cifar10-", "compare fedp", "schema sent", f"report --runs-dir {tmp_path} other se", "datas"]
    typed += ["sweep ppfe-cifar10-s5 tab", "tune pefll-cifar10-n100-rates a", "tune nothing a", "track RUN --to w"]
    code = """
import os, sys
from florilegium.apps.cli.app import cli
for words in sys.argv[1:]:
    os.environ |= {"COMP_WORDS": "florilegium " + words, "COMP_CWORD": str(len(words.split()))}
    try:
        cli(prog_name="florilegium")
    except SystemExit:
        print("--")
print({"torch", "pandas", "matplotlib"} & sys.modules.keys())
"""
    environment = {**os.environ, "_FLORILEGIUM_COMPLETE": "complete_bash", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *typed], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    answers = [part.split() for part in done.stdout.split("--")]
    recipes, methods, datasets, runs, commands, sweeps, tunings, nothing, trackers, imported = answers
    assert recipes == [name for name in recipe_names() if name.startswith("ppfe-cifar10-")]
    assert methods == [name for name in METHODS if name.startswith("fedp")]
    assert datasets == [name for name in DATASETS if name.startswith("sent")]
    assert runs == ["second"]
    assert commands == ["datasets"]
    assert sweeps == ["table-1", "table-3", "table-4", "table-5", "table-b6"]  # of the recipe that it extends
    assert (tunings, nothing, trackers) == (["all"], [], ["wandb"])
    assert imported == ["set()"]


SAME = {"run": fl.run, "compare": fl.compare, "sweep": fl.sweep, "tune": fl.tune, "track": fl.Run.track}
"""Commands, and the functions of the Python interface that do the same."""
PYTHON_ONLY = {"self", "progress", "on_evaluation", "keys"}
FROM_THE_MACHINE = {"workers"}
"""Options whose default depends on the machine."""


@pytest.mark.parametrize("name", SAME)
def test_commands_take_what_the_python_interface_takes(name: str) -> None:
    """Its parameters, their defaults, and the first sentence that its docstring has about each."""
    assert isinstance(TOP, click.Group)
    options = {one.name: one for one in TOP.commands[name].params}
    told = RUN_SAYS | said("runs" if name == "track" else "tuning" if name == "tune" else "running",
                           "Run.track" if name == "track" else name)  # fmt: skip
    for parameter in inspect.signature(SAME[name]).parameters.values():
        if parameter.name in PYTHON_ONLY:
            continue
        own = options[parameter.name]
        default = () if parameter.default is parameter.empty else parameter.default
        assert parameter.name in FROM_THE_MACHINE or (own.default or ()) == (default or ())
        assert parameter.name == "seeds" or getattr(own, "help", "") == told[parameter.name]


def test_a_docstring_says_what_the_help_shows() -> None:
    assert said("running", "Comparison.report")["html"] == (
        "also write report.html: one file with all tables and pictures"
    )
