"""The command line: ``florilegium run``, ``compare``, ``report``, ``partition`` and the rest."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from apps.experiment import resolve, run_experiment
from common.errors import FlorilegiumError

cli = typer.Typer(
    no_args_is_help=True, add_completion=False,
    pretty_exceptions_enable=False,
)  # fmt: skip

Assignments = Annotated[list[str] | None, typer.Option("--set", help="key=value, overriding recipe and defaults")]
Workers = Annotated[int, typer.Option(min=1, help="worker processes, one CPU each")]
RunsDir = Annotated[Path | None, typer.Option(help="where runs are written")]
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _options(runs_dir: Path | None) -> dict[str, bool | int | float | str]:
    return {"runs-dir": str(runs_dir)} if runs_dir else {}


@cli.callback()
def florilegium() -> None:
    """Federated-learning methods as one Flower App."""


@cli.command()
def run(
    recipe: Annotated[str | None, typer.Argument(help="a recipe's name or a TOML file")] = None,
    assignments: Assignments = None,
    workers: Workers = CORES,
    runs_dir: RunsDir = None,
) -> None:
    """Run one experiment in a simulation. The last line on standard output is the run's folder."""
    overrides = resolve(recipe, assignments or [], _options(runs_dir))
    print(run_experiment(overrides, workers, Console(stderr=True)))


def main() -> None:
    """Entry point: an error of the user's making is one message and exit status 2, a failed run 1."""
    try:
        cli(standalone_mode=True)
    except FlorilegiumError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
