"""Commands that carry out runs, and that write what is run: apps and packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from florilegium.apps.cli_groups import RUN, Group
from florilegium.apps.cli_options import (
    CORES,
    Assignments,
    EngineOption,
    Html,
    Recipe,
    ReportFolder,
    RunName,
    RunsDir,
    Seeds,
    Workers,
    of_recipe,
    read_seeds,
    runs_folder,
)  # fmt: skip
from florilegium.apps.cli_tables import show, show_report
from florilegium.apps.completion import complete_method, complete_recipe, complete_sweep, complete_tuning
from florilegium.apps.progress import numbered, on_terminal
from florilegium.common.errors import ConfigurationError, RunError, StoppedError

if TYPE_CHECKING:
    from florilegium.apps.cells import Cell, Outcome
    from florilegium.common.settings import Value

running = Group(RUN)


def _carry_out(overrides: Mapping[str, Value], named: Mapping[str, Value], workers: int, engine: EngineOption) -> None:
    """Carry out one run and print its folder.

    Args:
        overrides: the run configuration, where it differs from the defaults.
        named: what the user has given by ``--set``.
        workers, engine: as for :func:`florilegium.apps.engines.engine`.
    """
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import run_experiment, warn_of_idle_keys

    warn_of_idle_keys(named, [overrides])
    with _stoppable(), choose(engine, workers, [overrides], fork=True) as chosen:
        path = run_experiment(chosen, overrides, on_terminal(Console(stderr=True)))
    print(path)


def _carry_out_all(
    wanted: Sequence[Cell], folder: Path, assignments: Sequence[str] | None, workers: int, engine: EngineOption
) -> Outcome:
    """Carry out those of several runs that have not completed yet; return the outcome of all."""
    from florilegium.apps.cells import run_cells, unfinished
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, run_experiment, warn_of_idle_keys

    warn_of_idle_keys(read_assignments(assignments or []), [cell.keys for cell in wanted])
    left = unfinished(wanted, folder)
    display = numbered(on_terminal(Console(stderr=True)), len(left))
    with _stoppable(), choose(engine, workers, left, fork=True) as chosen:
        return run_cells(wanted, folder, lambda keys: run_experiment(chosen, keys, display))


def _refuse_if_complete(run: Path, rounds: Value | None) -> None:
    """Raise :class:`ConfigurationError` if a run has completed and is not to have more rounds than it has."""
    from florilegium.strategies.core.claim import read_status
    from florilegium.strategies.core.results import read_summary
    from florilegium.strategies.core.run_folder import read_config

    try:
        status, summary = read_status(run), read_summary(run)
        done, transferred = int(status["round"]), "target" in summary["final"]
    except (RunError, OSError, ValueError, KeyError, TypeError):
        return  # it has not completed, or what it says of itself is damaged and will be written anew
    if status["state"] != "completed" or (isinstance(rounds, int) and rounds > done):
        return
    if read_config(run).get("transfer-target") and not transferred:
        return
    raise ConfigurationError(
        f"resume: run '{run.name}' is complete, with {done} rounds. To lengthen it, set a larger number: florilegium "
        f"resume {run.name} --set rounds={2 * done}"
    )


def _options(runs_dir: Path | None) -> dict[str, bool | int | float | str]:
    return {"runs-dir": str(runs_dir)} if runs_dir else {}


def _runs_dir(assignments: Sequence[str] | None, runs_dir: Path | None) -> str:
    """Return the folder of runs: that of ``--runs-dir``, else that of ``--set runs-dir=…``, else the default."""
    from florilegium.apps.experiment import read_assignments

    named = {} if runs_dir else read_assignments(assignments or [])
    return str(named.get("runs-dir", runs_folder(runs_dir)))


@contextmanager
def _stoppable() -> Iterator[None]:
    """Context in which a run's words on being stopped become an error message."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(str(error) or "stopped") from error


@running.add("florilegium run ppfe-cifar10-s2:fedper --set seed=2")
def run(
    recipe: Recipe = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Run one experiment in a simulation. The last line on standard output is the run's folder.

    With --seeds it is the folder of a report on all seeds; finished runs are reused.
    """
    if seeds is not None:
        _several([], read_seeds(seeds), recipe, assignments, workers, engine, runs_dir)
        return
    from florilegium.apps.experiment import read_assignments, resolve

    overrides = resolve(recipe, assignments or [], _options(runs_dir))
    _carry_out(overrides, read_assignments(assignments or []), workers, engine)


@running.add("florilegium compare fedavg fedprox local --set rounds=20")
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(help="methods to run on the same clients with the same seeds", autocompletion=complete_method),
    ],
    recipe: Annotated[
        str | None, typer.Option(help="a recipe's name, or a TOML file", autocompletion=complete_recipe)
    ] = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: ReportFolder = None,
    html: Html = False,
    tuned: Annotated[str, typer.Option(help="use what `tune RECIPE NAME` has chosen: NAME, or its tuned.toml")] = "",
) -> None:
    """Run several methods on the same clients and compare them in one report. Finished runs are reused."""
    numbers = [] if seeds is None else read_seeds(seeds)
    _several(methods, numbers, recipe, assignments, workers, engine, runs_dir, output, html=html, tuned=tuned)


def _several(
    methods: list[str],
    seeds: list[int],
    recipe: str | None,
    assignments: list[str] | None,
    workers: int,
    engine: EngineOption,
    runs_dir: Path | None,
    output: Path | None = None,
    *,
    html: bool = False,
    tuned: str = "",
) -> None:
    """Carry out or reuse the runs of several methods and seeds; write and print a report."""
    from florilegium.apps.cells import comparison, folder_of, report_name
    from florilegium.apps.reports.writing import write_report

    best = None
    if tuned:
        from florilegium.apps.tuning.chosen import read_tuned

        best = read_tuned(recipe, tuned, _runs_dir(assignments, runs_dir))
    wanted = comparison(methods, seeds, recipe, assignments or [], _options(runs_dir), best)
    folder = folder_of(wanted)
    outcome = _carry_out_all(wanted, folder, assignments, workers, engine)
    if outcome.completed:
        target = output or folder / report_name(wanted)
        title = (", ".join(methods) or recipe or wanted[0].name) + (f", tuned ({tuned})" if tuned else "")
        show_report(write_report(outcome.completed, target, title, html=html))
        print(target)
    outcome.all()


@running.add("florilegium sweep ppfe-cifar10-s2 table-1")
def sweep(
    recipe: Annotated[str, of_recipe("a recipe's name, or a TOML file")],
    name: Annotated[
        str,
        typer.Argument(help="one of the recipe's sweeps: a table or figure of a paper", autocompletion=complete_sweep),
    ],
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: ReportFolder = None,
    html: Html = False,
) -> None:
    """Reproduce a table or figure of a paper: carry out a recipe's sweep. Finished runs are not repeated."""
    from florilegium.apps.experiment import recipe_name, resolve
    from florilegium.apps.reports.sweeps import write_sweep
    from florilegium.apps.sweep import cells, read_sweep

    overrides = resolve(None, assignments or [], {"runs-dir": _runs_dir(assignments, runs_dir)})
    wanted, folder = cells(recipe, name, overrides), Path(str(overrides["runs-dir"]))
    paths = _carry_out_all(wanted, folder, assignments, workers, engine).all()
    target = output or folder / f"{recipe_name(recipe)}-{name}"
    show_report(
        write_sweep(f"{recipe_name(recipe)}: {name}", read_sweep(recipe, name), wanted, paths, target, html=html)
    )
    print(target)


@running.add("florilegium tune pefll-cifar10-n100-rates all --set rounds=50")
def tune(
    recipe: Annotated[str, of_recipe("a recipe's name, or a TOML file")],
    name: Annotated[
        str, typer.Argument(help="one of the recipe's tables [tune.<name>]", autocompletion=complete_tuning)
    ],
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Tune methods alike on held-back training examples: same trials, same budget. A stopped tuning goes on."""
    from florilegium.apps.experiment import resolve
    from florilegium.apps.tuning.report import choices
    from florilegium.apps.tuning.trials import tune as carry_out

    overrides = resolve(None, assignments or [], {"runs-dir": _runs_dir(assignments, runs_dir)})
    with _stoppable():
        tuning = carry_out(recipe, name, overrides, engine, workers, on_terminal(Console(stderr=True)), fork=True)
    table = choices(tuning)
    show(table.head, table.rows)
    print(tuning.plan.folder)
    tuning.require_choices()


@running.add("florilegium resume RUN --set rounds=60")
def resume(
    run: RunName,
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Go on with a run from its last checkpoint: one that was stopped, or a completed one for more rounds."""
    from florilegium.apps.experiment import read_assignments, resolve
    from florilegium.strategies.core.run_folder import find_run

    named = read_assignments(assignments or [])
    path = find_run(run, str(named.get("runs-dir", runs_folder(runs_dir))))
    _refuse_if_complete(path, named.get("rounds"))
    overrides = resolve(None, assignments or [], {**_options(path.parent), "resume": path.name})
    _carry_out(overrides, named, workers, engine)


@running.add("florilegium reproduce RUN")
def reproduce(run: RunName, runs_dir: RunsDir = None) -> None:
    """Carry a run out again and say, figure by figure, what differs; if something does, the exit status is 1."""
    from florilegium.apps.reproduce import reproduce as repeat
    from florilegium.strategies.core.run_folder import find_run

    with _stoppable():
        path, found = repeat(find_run(run, runs_folder(runs_dir)), on_terminal(Console(stderr=True)), fork=True)
    print(f"{found}\n{path}")
    raise typer.Exit(0 if found.same else 1)


@running.add("florilegium new method fed-mine")
def new(
    kind: Annotated[Literal["method", "network", "dataset"], typer.Argument(help="what the package provides")],
    name: Annotated[str, typer.Argument(help="its name in the configuration, such as fed-mine")],
    folder: Annotated[Path, typer.Option(help="where to write the package's folder")] = Path(),
) -> None:
    """Write a small package with a method, network or dataset of your own: code, a recipe, and a test that passes."""
    from florilegium.apps.scaffold import write_package

    path = write_package(kind, name, folder)
    print(f"{path}\ntry it: pip install -e {path}; python -m pytest {path}; florilegium run {path / 'recipe.toml'}")


@running.add("florilegium app fl-app")
def app(folder: Annotated[Path, typer.Argument(help="a new folder")]) -> None:
    """Write the Flower app to a folder for `flwr run FOLDER`; needed if the package is installed, not checked out."""
    from florilegium.apps.app_folder import write_app

    print(write_app(folder))
