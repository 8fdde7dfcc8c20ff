"""``florilegium board``: many methods tuned alike and ranked on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from florilegium.apps.cli.groups import RUN, Group
from florilegium.apps.cli.options import (
    CORES,
    Assignments,
    EngineOption,
    RunsDir,
    Workers,
    means_of,
    of_recipe,
    read_seeds,
    runs_dir_of,
    stoppable,
)  # fmt: skip
from florilegium.apps.cli.tables import show_report

commands = Group(RUN)


@commands.add("florilegium board board-fmnist-path-short --output boards", "running:sweep")
def board(
    recipe: Annotated[str, of_recipe("a recipe with a table tune.board, or a TOML file")],
    engine: EngineOption,
    assignments: Assignments = None,
    seeds: Annotated[str, typer.Option(metavar="SEEDS", help="seeds of each method's runs")] = "1-3",
    workers: Workers = CORES,
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the page (default: boards, beside the runs)")] = None,
) -> None:
    """Rank methods, tuned alike and run with several seeds, on one page; run it again to continue a stopped board.

    With a recipe of attacks and defences, such as under-attack, every attack meets every defence instead.
    """
    from florilegium.apps.runs.experiment import resolve
    from florilegium.research.board import under_attack
    from florilegium.research.board.carry_out import carry_out
    from florilegium.research.board.page import write_board

    overrides = resolve(None, assignments or [], {"runs-dir": runs_dir_of(assignments, runs_dir)})
    target, means = output or Path(str(overrides["runs-dir"])) / "boards", means_of(engine, workers)
    with stoppable():
        if under_attack.is_under_attack(recipe):
            show_report(under_attack.write_board(recipe, read_seeds(seeds), overrides, means, target))
            print(target)
            return
        made = carry_out(recipe, read_seeds(seeds), overrides, means)
    show_report(write_board(made, target))
    print(target)
