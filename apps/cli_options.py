"""Options and arguments shared by several commands, with what the shell completes them to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from florilegium.apps.completion import complete_recipe, complete_run

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def of_run(help: str) -> Any:
    """Return an argument that names a run or several; the shell completes it."""
    return typer.Argument(help=help, autocompletion=complete_run)


def of_recipe(help: str) -> Any:
    """Return an argument that names a recipe; the shell completes it."""
    return typer.Argument(help=help, autocompletion=complete_recipe)


RunName = Annotated[str, of_run("a run's id or folder")]
Recipe = Annotated[str | None, of_recipe("a recipe's name, or a TOML file")]
Assignments = Annotated[list[str] | None, typer.Option("--set", help="key=value; overrides recipe and defaults")]
Workers = Annotated[int, typer.Option(min=1, help="worker processes, one CPU each")]
EngineOption = Annotated[
    Literal["auto", "process", "ray"],
    typer.Option(help="process: this one and workers of its own; ray: Flower's simulation; auto: ray for a cluster"),
]
RunsDir = Annotated[Path | None, typer.Option(help="folder of runs (default: key runs-dir)")]


def runs_folder(runs_dir: Path | None) -> str:
    """Return the folder of runs: the option ``--runs-dir`` if given, otherwise the default of key ``runs-dir``."""
    from florilegium.apps.settings import defaults

    return str(runs_dir.absolute()) if runs_dir else str(defaults()["runs-dir"])
