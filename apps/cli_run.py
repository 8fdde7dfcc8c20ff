"""Commands that carry out runs, and that write what is run: apps and packages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from florilegium.apps.cli_options import CORES, Assignments, EngineOption, Recipe, RunsDir, Workers, runs_folder
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
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Run one experiment in a simulation. The last line on standard output is the run's folder."""
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, resolve, run_experiment, warn_of_idle_keys

    overrides = resolve(recipe, assignments or [], _options(runs_dir))
    warn_of_idle_keys(read_assignments(assignments or []), [overrides])
    with _stoppable(), choose(engine, workers, [overrides], fork=True) as chosen:
        path = run_experiment(chosen, overrides, on_terminal(Console(stderr=True)))
    print(path)


@running.command()
def compare(
    methods: Annotated[list[str], typer.Argument(help="methods to run on the same federation, cohorts and seed")],
    recipe: Annotated[str | None, typer.Option(help="a recipe's name, or a TOML file")] = None,
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")] = None,
) -> None:
    """Run several methods on the same federation and compare them in one table and one picture."""
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, resolve, run_experiment, warn_of_idle_keys
    from florilegium.apps.methods import METHODS
    from florilegium.apps.report import write_report
    from florilegium.common.errors import ConfigurationError, nearest

    for method in methods:
        if method not in METHODS:
            raise ConfigurationError(
                f"'{method}' is not a method{nearest(method, METHODS)} Known: {', '.join(METHODS)}."
            )
    display, paths = on_terminal(Console(stderr=True)), []
    wanted = [resolve(recipe, assignments or [], {**_options(runs_dir), "method": method}) for method in methods]
    warn_of_idle_keys(read_assignments(assignments or []), wanted)
    with _stoppable(), choose(engine, workers, wanted, fork=True) as chosen:
        for overrides in wanted:
            paths.append(run_experiment(chosen, overrides, display))
    target = output or paths[0].parent / f"compare-{paths[0].name}"
    print(write_report(paths, target))
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
) -> None:
    """Reproduce a table or figure of a paper: carry out a recipe's sweep. Finished runs are not repeated."""
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, recipe_name, resolve, run_experiment, warn_of_idle_keys
    from florilegium.apps.sweep import cells, read_sweep, run_cells, unfinished, write_sweep

    overrides = resolve(None, assignments or [], {"runs-dir": runs_folder(runs_dir)})
    wanted, display = cells(recipe, name, overrides), on_terminal(Console(stderr=True))
    folder = Path(str(overrides["runs-dir"]))
    warn_of_idle_keys(read_assignments(assignments or []), [dict(cell.keys) for cell in wanted])
    with _stoppable(), choose(engine, workers, unfinished(wanted, folder), fork=True) as chosen:
        paths = run_cells(wanted, folder, lambda keys: run_experiment(chosen, keys, display))
    target = output or folder / f"{recipe_name(recipe)}-{name}"
    print(write_sweep(f"{recipe_name(recipe)}: {name}", read_sweep(recipe, name), wanted, paths, target))
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
