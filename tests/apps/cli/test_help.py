"""The help of the command line: groups, an example of every command, and what the shell completes."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import click
import pytest
import typer
from typer.testing import CliRunner

import florilegium as fl
from florilegium.apps.cli.app import cli
from florilegium.apps.cli.mirror import mirrored, parameters
from florilegium.apps.methods.registry import METHODS
from florilegium.apps.runs.recipes import recipe_names
from florilegium.partitions.datasets import DATASETS
from tests.processes import ROOT

TOP = typer.main.get_command(cli)
GROUPS = {
    "Run": ["run", "describe", "check", "resume", "reproduce", "compare", "sweep", "tune", "new", "app", "cluster",
            "board"],
    "Inspect": [
        "watch", "report", "runs", "predict", "export", "personalise", "transfer", "methods", "recipes", "keys",
        "track", "ui",
    ],
    "Data": ["datasets", "partition", "fleet", "pictures", "speech", "census", "schema", "split"],
    "Devices": ["device", "superlink"],
    "Privacy": ["privacy", "audit"],
    "Studies": [
        "pareto", "descriptors", "embed", "hyperparameters", "norms", "heterogeneity", "recovery", "fidelity", "flamby",
        "ledger",
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


SAME: dict[str, tuple[str, Callable[..., object]]] = {
    "run": ("running:run", fl.run),
    "compare": ("running:compare", fl.compare),
    "sweep": ("running:sweep", fl.sweep),
    "tune": ("tuning:tune", fl.tune),
    "report": ("running:Comparison.report", fl.Comparison.report),
    "export": ("runs:Run.export", fl.Run.export),
    "track": ("runs:Run.track", fl.Run.track),
    "partition": ("tables:partition", fl.partition),
    "keys": ("tables:keys", fl.keys),
}
"""Commands, and the functions of the Python interface that do the same."""
PYTHON_ONLY = {"self", "progress", "on_evaluation"}
OWN_DEFAULT = {
    ("run", "workers"),
    ("compare", "workers"),
    ("sweep", "workers"),
    ("tune", "workers"),
    ("report", "target"),
}
"""Options whose default depends on the machine, or on the folder where the command is called."""


@pytest.mark.parametrize("name", SAME)
def test_commands_take_what_the_python_interface_takes(name: str) -> None:
    """Its parameters, their defaults, and the first sentence that its docstring has about each."""
    assert isinstance(TOP, click.Group)
    options, (reference, function) = {one.name: one for one in TOP.commands[name].params}, SAME[name]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in PYTHON_ONLY or parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        own, said = options[parameter.name], parameters(reference)[parameter.name]
        assert said.default == parameter.default
        assert (name, parameter.name) in OWN_DEFAULT or own.required == (parameter.default is parameter.empty)
        assert (name, parameter.name) in OWN_DEFAULT or own.required or (own.default or ()) == (parameter.default or ())
        assert parameter.name == "seeds" or getattr(own, "help", "") == said.help
        assert said.help


def test_a_docstring_says_what_the_help_shows() -> None:
    assert parameters("running:Comparison.report")["html"].help == (
        "also write report.html: one file with all tables and pictures"
    )
    assert parameters("tuning:tune")["workers"] == ("worker processes, one CPU each", 1)  # "as for run"


def test_a_command_keeps_what_is_its_own() -> None:
    def command(
        recipe: Annotated[str, typer.Argument(help="another")],
        engine: str,
        html: bool,
        other: Annotated[int, typer.Option(min=1)] = 2,
        workers: int = 7,
    ) -> None:
        """Take two parameters from one function, and one from the other."""

    app = typer.Typer()
    app.command()(mirrored(command, ["running:run", "running:Comparison.report"]))
    own = {one.name: one for one in typer.main.get_command(app).params}
    assert [type(own[name]).param_type_name for name in ("recipe", "engine")] == ["argument", "option"]
    defaults = {"recipe": None, "engine": "auto", "html": False, "other": 2, "workers": 7}
    assert {name: own[name].default for name in defaults} == defaults
    assert (getattr(own["recipe"], "help", ""), getattr(own["html"], "help", "")) == (
        "another", parameters("running:Comparison.report")["html"].help,
    )  # fmt: skip
    assert (own["html"].opts, own["html"].secondary_opts) == (["--html"], [])
