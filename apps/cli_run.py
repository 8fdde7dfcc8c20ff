"""Commands that carry out runs, and that write what is run: apps and packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from florilegium.apps.cli_options import (
    CORES,
    Assignments,
    EngineOption,
    Html,
    Recipe,
    RunsDir,
    Seeds,
    Workers,
    read_seeds,
    runs_folder,
)
from florilegium.apps.progress import on_terminal
from florilegium.common.errors import StoppedError

running = typer.Typer()


def _options(runs_dir: Path | None) -> dict[str, bool | int | float | str]:
    return {"runs-dir": str(runs_dir)} if runs_dir else {}


@contextmanager
def _stoppable() -> Iterator[None]:
    """Context in which a run's words on being stopped become an error message."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(str(error) or "stopped") from error


@running.command()
def run(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Seeds = "",
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Run one experiment in a simulation. The last line on standard output is the run's folder.

    With --seeds it is the folder of a report on all seeds; finished runs are reused.
    """
    if numbers := read_seeds(seeds):
        _several([], numbers, recipe, assignments, workers, engine, runs_dir, None)
        return
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, resolve, run_experiment, warn_of_idle_keys

    overrides = resolve(recipe, assignments or [], _options(runs_dir))
    warn_of_idle_keys(read_assignments(assignments or []), [overrides])
    with _stoppable(), choose(engine, workers, [overrides], fork=True) as chosen:
        path = run_experiment(chosen, overrides, on_terminal(Console(stderr=True)))
    print(path)


@running.command()
def compare(
    methods: Annotated[list[str], typer.Argument(help="methods to run on the same clients with the same seeds")],
    recipe: Annotated[str | None, typer.Option(help="a recipe's name, or a TOML file")] = None,
    assignments: Assignments = None,
    seeds: Seeds = "",
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")] = None,
    html: Html = False,
) -> None:
    """Run several methods on the same clients and compare them in one report. Finished runs are reused."""
    _several(methods, read_seeds(seeds), recipe, assignments, workers, engine, runs_dir, output, html=html)


def _several(
    methods: list[str],
    seeds: list[int],
    recipe: str | None,
    assignments: list[str] | None,
    workers: int,
    engine: Literal["auto", "process", "ray"],
    runs_dir: Path | None,
    output: Path | None,
    *,
    html: bool = False,
) -> None:
    """Carry out or reuse the runs of several methods and seeds; write and print a report."""
    from florilegium.apps.cells import comparison, run_cells, unfinished
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, run_experiment, warn_of_idle_keys
    from florilegium.apps.reports.writing import write_report

    wanted = comparison(methods, seeds, recipe, assignments or [], {"runs-dir": runs_folder(runs_dir)})
    folder, display = Path(str(wanted[0].keys["runs-dir"])), on_terminal(Console(stderr=True))
    warn_of_idle_keys(read_assignments(assignments or []), [cell.keys for cell in wanted])
    with _stoppable(), choose(engine, workers, unfinished(wanted, folder), fork=True) as chosen:
        paths = run_cells(wanted, folder, lambda keys: run_experiment(chosen, keys, display))
    target = output or folder / f"compare-{paths[0].name}"
    print(write_report(paths, target, html=html))
    print(target)


@running.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="a recipe's name, or a TOML file")],
    name: Annotated[str, typer.Argument(help="one of the recipe's sweeps: a table or figure of a paper")],
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")] = None,
    html: Html = False,
) -> None:
    """Reproduce a table or figure of a paper: carry out a recipe's sweep. Finished runs are not repeated."""
    from florilegium.apps.cells import run_cells, unfinished
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, recipe_name, resolve, run_experiment, warn_of_idle_keys
    from florilegium.apps.reports.sweeps import write_sweep
    from florilegium.apps.sweep import cells, read_sweep

    overrides = resolve(None, assignments or [], {"runs-dir": runs_folder(runs_dir)})
    wanted, display = cells(recipe, name, overrides), on_terminal(Console(stderr=True))
    folder = Path(str(overrides["runs-dir"]))
    warn_of_idle_keys(read_assignments(assignments or []), [dict(cell.keys) for cell in wanted])
    with _stoppable(), choose(engine, workers, unfinished(wanted, folder), fork=True) as chosen:
        paths = run_cells(wanted, folder, lambda keys: run_experiment(chosen, keys, display))
    target = output or folder / f"{recipe_name(recipe)}-{name}"
    print(write_sweep(f"{recipe_name(recipe)}: {name}", read_sweep(recipe, name), wanted, paths, target, html=html))
    print(target)


@running.command()
def new(
    kind: Annotated[Literal["method", "network", "dataset"], typer.Argument(help="what the package provides")],
    name: Annotated[str, typer.Argument(help="its name in the configuration, such as fed-mine")],
    folder: Annotated[Path, typer.Option(help="where to write the package's folder")] = Path(),
) -> None:
    """Write a small package with a method, network or dataset of your own: code, a recipe, and a test that passes."""
    from florilegium.apps.scaffold import write_package

    path = write_package(kind, name, folder)
    print(f"{path}\ntry it: pip install -e {path}; python -m pytest {path}; florilegium run {path / 'recipe.toml'}")


@running.command()
def app(folder: Annotated[Path, typer.Argument(help="a new folder")]) -> None:
    """Write the Flower app to a folder for `flwr run FOLDER`; needed if the package is installed, not checked out."""
    from florilegium.apps.app_folder import write_app

    print(write_app(folder))
