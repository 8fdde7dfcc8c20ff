"""Commands that carry out one run: begin it, go on with it, carry it out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from florilegium.apps.cli.groups import RUN, Group
from florilegium.apps.cli.options import (
    CORES,
    Assignments,
    EngineOption,
    Recipe,
    RunName,
    RunsDir,
    Seeds,
    Workers,
    means_of,
    options_of,
    read_seeds,
    run_path,
    runs_folder,
    stoppable,
)  # fmt: skip
from florilegium.apps.cli.several import several
from florilegium.apps.engines.progress import on_terminal
from florilegium.common.errors import ConfigurationError, RunError

if TYPE_CHECKING:
    from florilegium.common.settings import Value

running = Group(RUN)


def _carry_out(overrides: Mapping[str, Value], workers: int, engine: str) -> None:
    """Carry out one run and print its folder."""
    from florilegium.apps.runs.experiment import carry_out_run

    with stoppable():
        path = carry_out_run(overrides, means_of(engine, workers))
    _tell_coefficients(path)
    print(path)


def _tell_coefficients(run: Path) -> None:
    """Print the coefficients of a fitted regression, which its summary has, on standard error."""
    from florilegium.strategies.folder.results import read_summary

    blocks = [block for block in read_summary(run).values() if isinstance(block, dict)]
    for block in blocks + [block["model"] for block in blocks if isinstance(block.get("model"), dict)]:
        if lines := block.get("coefficients"):
            shown = Table(*(name.replace("_", " ") for name in lines[0]), box=None, pad_edge=False)
            for line in lines[:100]:
                shown.add_row(*(f"{one:.3g}" if isinstance(one, float) else str(one or "–") for one in line.values()))
            Console(stderr=True).print(shown)


def _refuse_if_complete(run: Path, rounds: Value | None) -> None:
    """Raise :class:`ConfigurationError` if a run has completed and is not to have more rounds than it has."""
    from florilegium.apps.runs.run_list import resume_command
    from florilegium.strategies.folder.claim import read_status
    from florilegium.strategies.folder.results import read_summary
    from florilegium.strategies.folder.run_folder import read_config

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
        f"resume: run '{run.name}' is complete, with {done} rounds. To lengthen it, set a larger number: "
        f"{resume_command(run)} --set rounds={2 * done}"
    )


@running.add("florilegium run ppfe-cifar10-s2:fedper --set seed=2", "running:run")
def run(
    recipe: Recipe,
    engine: EngineOption,
    workers: Workers = CORES,
    assignments: Assignments = None,
    seeds: Seeds = None,
    runs_dir: RunsDir = None,
) -> None:
    """Run one experiment in a simulation. The last line on standard output is the run's folder.

    With --seeds it is the folder of a report on all seeds; finished runs are reused.
    """
    if seeds is not None:
        several([], read_seeds(seeds), recipe, assignments, workers, engine, runs_dir)
        return
    from florilegium.apps.runs.experiment import offered, read_assignments, resolve
    from florilegium.apps.settings.idle import warn_of_idle_keys

    overrides = resolve(recipe, assignments or [], options_of(runs_dir))
    warn_of_idle_keys(read_assignments(assignments or []), [overrides], offered(recipe))
    _carry_out(overrides, workers, engine)


@running.add("florilegium describe --set dataset=./own --set partitioner=natural --set num-clients=0", "running:run")
def describe(
    engine: EngineOption, workers: Workers = CORES, assignments: Assignments = None, runs_dir: RunsDir = None
) -> None:
    """Describe the clients' tables before training. The last line on standard output is the run's folder.

    The folder has description.html and description.json.
    """
    from florilegium.apps.runs.experiment import read_assignments, resolve
    from florilegium.apps.settings.idle import warn_of_idle_keys

    overrides = resolve(None, ["method=describe", "rounds=1", *(assignments or [])], options_of(runs_dir))
    warn_of_idle_keys(read_assignments(assignments or []), [overrides])
    _carry_out(overrides, workers, engine)


@running.add("florilegium check ppfe-cifar10-s2:fedper --set rounds=500")
def check(recipe: Recipe = None, assignments: Assignments = None) -> None:
    """Check a run's configuration and data without running it; list changed keys, and estimate what it takes."""
    from florilegium.apps.cli.tables import show
    from florilegium.apps.runs.check import check_run
    from florilegium.apps.runs.experiment import offered, read_assignments, resolve
    from florilegium.apps.settings.idle import warn_of_idle_keys

    overrides = resolve(recipe, assignments or [], {})
    warn_of_idle_keys(read_assignments(assignments or []), [overrides], offered(recipe))
    found = check_run(overrides)
    rows = [(key, repr(value), repr(default)) for key, (value, default) in sorted(found.changed.items())]
    show(["key", "value", "default"], rows, "keys that differ from their defaults")
    for warning in found.warnings:
        print(f"warning: {warning}")
    print(f"{found.clients} clients, cohorts of {found.cohort}, {found.rounds} rounds")
    if found.estimate:
        numbers = [(name, f"{value:,.0f}" if value >= 10 else f"{value:.2g}") for name, value in found.estimate.items()]
        show(["estimate", "number"], numbers, "estimated from one round of one client")
    else:
        print(f"no estimate: a single client cannot be rehearsed ({found.why})")
    print("nothing is wrong")


@running.add("florilegium resume RUN --set rounds=60", "running:run")
def resume(
    run: RunName,
    engine: EngineOption,
    workers: Workers = CORES,
    assignments: Assignments = None,
    runs_dir: RunsDir = None,
) -> None:
    """Resume a stopped run from its last checkpoint, or continue a completed one for more rounds."""
    from florilegium.apps.runs.experiment import read_assignments, resolve
    from florilegium.apps.settings.idle import warn_of_idle_keys
    from florilegium.strategies.folder.run_folder import find_run

    named = read_assignments(assignments or [])
    path = find_run(run, str(named.get("runs-dir", runs_folder(runs_dir))))
    _refuse_if_complete(path, named.get("rounds"))
    overrides = resolve(None, assignments or [], {**options_of(path.parent), "resume": path.name})
    warn_of_idle_keys(named, [overrides])
    _carry_out(overrides, workers, engine)


@running.add("florilegium reproduce RUN")
def reproduce(run: RunName, runs_dir: RunsDir = None) -> None:
    """Repeat a run and list every figure that differs from it; the exit status is 1 if any does."""
    from florilegium.apps.runs.reproduce import reproduce as repeat

    with stoppable():
        path, found = repeat(run_path(run, runs_dir), on_terminal(Console(stderr=True)), fork=True)
    print(f"{found}\n{path}")
    raise typer.Exit(0 if found.same else 1)
