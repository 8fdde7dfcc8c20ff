"""Commands that carry out several runs and report on them: comparisons, sweeps, tunings, boards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from florilegium.apps.cli.groups import RUN, Group
from florilegium.apps.cli.options import (
    CORES,
    Assignments,
    EngineOption,
    ReportFolder,
    RunsDir,
    Seeds,
    Workers,
    complete_method,
    complete_recipe,
    complete_sweep,
    complete_tuning,
    means_of,
    of_recipe,
    options_of,
    read_seeds,
    runs_dir_of,
    stoppable,
)  # fmt: skip
from florilegium.apps.cli.tables import show, show_report

together = Group(RUN)


def several(
    methods: list[str],
    seeds: list[int],
    recipe: str | None,
    assignments: list[str] | None,
    workers: int,
    engine: str,
    runs_dir: Path | None,
    output: Path | None = None,
    *,
    html: bool = False,
    tuned: str = "",
) -> None:
    """Carry out or reuse the runs of several methods and seeds; write and print a report."""
    from florilegium.apps.reports.writing import write_report
    from florilegium.apps.sweeps.named_runs import compare, folder_of, report_name

    with stoppable():
        wanted, outcome = compare(
            methods, seeds, recipe, assignments or [], options_of(runs_dir), means_of(engine, workers), tuned
        )
    if outcome.completed:
        target = output or folder_of(wanted) / report_name(wanted)
        title = (", ".join(methods) or recipe or wanted[0].name) + (f", tuned ({tuned})" if tuned else "")
        show_report(write_report(outcome.completed, target, title, html=html))
        print(target)
    outcome.all()


@together.add(
    "florilegium compare fedavg fedprox local --set rounds=20", "running:compare", "running:Comparison.report"
)
def compare(
    methods: Annotated[list[str], typer.Argument(autocompletion=complete_method)],
    recipe: Annotated[str | None, typer.Option(autocompletion=complete_recipe)],
    tuned: str,
    engine: EngineOption,
    html: bool,
    workers: Workers = CORES,
    assignments: Assignments = None,
    seeds: Seeds = None,
    runs_dir: RunsDir = None,
    output: ReportFolder = None,
) -> None:
    """Run several methods on the same clients and compare them in one report. Finished runs are reused."""
    numbers = [] if seeds is None else read_seeds(seeds)
    several(methods, numbers, recipe, assignments, workers, engine, runs_dir, output, html=html, tuned=tuned)


@together.add("florilegium sweep ppfe-cifar10-s2 table-1", "running:sweep", "running:Comparison.report")
def sweep(
    recipe: Annotated[str, of_recipe()],
    name: Annotated[str, typer.Argument(autocompletion=complete_sweep)],
    engine: EngineOption,
    html: bool,
    workers: Workers = CORES,
    assignments: Assignments = None,
    runs_dir: RunsDir = None,
    output: ReportFolder = None,
) -> None:
    """Reproduce a table or figure of a paper with a recipe's sweep. Finished runs are reused."""
    from florilegium.apps.runs.experiment import resolve
    from florilegium.apps.sweeps.report import carry_out_sweep

    overrides = resolve(None, assignments or [], {"runs-dir": runs_dir_of(assignments, runs_dir)})
    with stoppable():
        done = carry_out_sweep(recipe, name, overrides, means_of(engine, workers), output, html=html)
    show_report(done.report)
    print(done.folder)


@together.add("florilegium tune pefll-cifar10-n100-rates all --set rounds=50", "tuning:tune")
def tune(
    recipe: Annotated[str, of_recipe()],
    name: Annotated[str, typer.Argument(autocompletion=complete_tuning)],
    engine: EngineOption,
    workers: Workers = CORES,
    assignments: Assignments = None,
    runs_dir: RunsDir = None,
) -> None:
    """Tune methods with equal budgets on held-out training examples; run it again to continue a stopped tuning."""
    from florilegium.apps.runs.experiment import resolve
    from florilegium.apps.tuning.report import choices
    from florilegium.apps.tuning.trials import tune as carry_out

    overrides = resolve(None, assignments or [], {"runs-dir": runs_dir_of(assignments, runs_dir)})
    with stoppable():
        tuning = carry_out(recipe, name, overrides, means_of(engine, workers))
    table = choices(tuning)
    show(table.head, table.rows)
    print(tuning.plan.folder)
    tuning.require_choices()
