"""Commands for studies of single methods: tables and pictures for runs of these methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from florilegium.apps.cli.groups import STUDIES, Group
from florilegium.apps.cli.options import (
    CORES,
    Assignments,
    EngineOption,
    RunsDir,
    Workers,
    means_of,
    of_recipe,
    of_run,
    run_path,
    runs_dir_of,
    runs_folder,
    stoppable,
)  # fmt: skip
from florilegium.apps.engines.progress import on_terminal

commands = Group(STUDIES)


@commands.add("florilegium pareto feddp-kmeans-mixture --seeds 1,2,3", "running:sweep")
def pareto(
    recipe: Annotated[str, of_recipe("a clustering recipe's name, or a TOML file")],
    assignments: Assignments = None,
    methods: Annotated[str, typer.Option(help="clustering methods, separated by commas; all by default")] = "",
    epsilons: Annotated[str, typer.Option(help="privacy budgets ε of a run")] = "0.1,0.15,0.2,0.3,0.4,0.5,0.7,1,1.5,2",
    steps: Annotated[str, typer.Option(help="numbers of steps T of FedDP-Lloyds")] = "0,1,2",
    splits: Annotated[str, typer.Option(help="splits of FedDP-Init's budget, separated by ;")] = "",
    seeds: Annotated[str, typer.Option(help="seeds")] = "1,2,3",
    choose_k: Annotated[
        int, typer.Option(help="instead: choose k from 1 to this number in one run; plot cost against k")
    ] = 0,
    workers: Workers = CORES,
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the tables (default: beside the runs)")] = None,
) -> None:
    """Plot clustering cost against the privacy budget, for all clustering methods, splits and numbers of steps."""
    from florilegium.apps.runs.experiment import recipe_name, resolve

    base = resolve(recipe, assignments or [], {})
    target = output or Path(runs_folder(runs_dir)).expanduser() / f"{recipe_name(recipe)}-pareto"
    if choose_k:
        from florilegium.research.studies.elbow import choose_k as choose

        print(f"k = {choose(base, choose_k, target)}")
        print(target)
        return
    from florilegium.apps.methods.registry import METHODS
    from florilegium.common.settings import parse_counts, parse_numbers
    from florilegium.research.studies.pareto import SPLITS, cells, summarise, sweep, write

    chosen = methods.split(",") if methods else [name for name, m in METHODS.items() if m.task == "clustering"]
    shares = splits.split(";") if splits else SPLITS
    wanted = cells(chosen, parse_numbers(epsilons), parse_counts(steps), shares, parse_counts(seeds))
    console = Console(stderr=True)
    print(write(summarise(sweep(wanted, base, target, workers, console.print)), target))
    print(target)


@commands.add("florilegium descriptors RUN")
def descriptors(
    run: Annotated[str, of_run("a PeFLL run's id or folder")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for descriptors.md and descriptors.png")] = Path("report"),
) -> None:
    """Show over training whether clients with similar data have similar descriptors."""
    from florilegium.research.studies.descriptors import write_correlations

    print(write_correlations(run_path(run, runs_dir), output))
    print(output)


@commands.add("florilegium embed RUN")
def embed(
    run: Annotated[str, of_run("the id or folder of a run of method flowdup")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for embedding.md and embedding.png")] = Path("report"),
) -> None:
    """Plot FLowDUP's representations of the clients' data, to show whether similar clients lie close together."""
    from florilegium.research.studies.embed import write_embedding

    print(write_embedding(run_path(run, runs_dir), output))
    print(output)


@commands.add("florilegium hyperparameters RUN")
def hyperparameters(
    run: Annotated[str, of_run("the id or folder of a run of method fedl2p or l2p")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for hyperparameters.md and pictures")] = Path("report"),
) -> None:
    """Show FedL2P's β and η of each client, layer by layer, and whether clients of a domain get similar ones."""
    from florilegium.research.studies.hyperparameters import write_hyperparameters

    print(write_hyperparameters(run_path(run, runs_dir), output))
    print(output)


@commands.add("florilegium norms RUN RUN")
def norms(
    runs: Annotated[list[str], of_run("ids or folders of runs of method fedgtst")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for norms.md and norms.png")] = Path("report"),
) -> None:
    """Plot FedGTST's gradient norms over the rounds; a run with fedgtst.coefficient = 0 gives those of FedAvg."""
    from florilegium.research.studies.norms import write_norms

    print(write_norms([run_path(run, runs_dir) for run in runs], output))
    print(output)


@commands.add("florilegium heterogeneity RUN")
def heterogeneity(
    run: Annotated[str, of_run("the id or folder of a run of method mdm")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for heterogeneity.md and heterogeneity.png")] = Path("report"),
) -> None:
    """Compare real clients with those simulated by a run of mdm, and with identically distributed clients."""
    from florilegium.research.studies.heterogeneity import write_heterogeneity

    print(write_heterogeneity(run_path(run, runs_dir), output))
    print(output)


@commands.add("florilegium recovery RUN RUN")
def recovery(
    runs: Annotated[
        list[str],
        of_run("ids or folders of runs of method mdm with a named mdm-params"),
    ],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for recovery.md and recovery.png")] = Path("report"),
) -> None:
    """Show how well runs of mdm recover the known distributions that their clients were drawn from."""
    from florilegium.research.studies.recovery import write_recovery

    print(write_recovery([run_path(run, runs_dir) for run in runs], output))
    print(output)


@commands.add("florilegium fidelity mdm-fidelity --batch-sizes 10 --epochs 1,2", "running:sweep")
def fidelity(
    recipe: Annotated[
        str,
        of_recipe("a recipe's name, or a TOML file; its variant 'mdm' fits the clients"),
    ],
    engine: EngineOption,
    assignments: Assignments = None,
    batch_sizes: Annotated[str, typer.Option(help="batch sizes of local training")] = "10,20",
    learning_rates: Annotated[str, typer.Option(help="learning rates of local training")] = "0.02,0.1",
    epochs: Annotated[str, typer.Option(help="numbers of epochs of local training")] = "1,2",
    disjoint: Annotated[
        bool, typer.Option("--disjoint", help="give simulated clients other rows than real ones")
    ] = False,
    workers: Workers = CORES,
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")] = None,
) -> None:
    """Train on real and on simulated clients with several hyper-parameters, to compare their accuracies."""
    from florilegium.apps.engines.registry import engine as choose
    from florilegium.apps.runs.experiment import recipe_name, resolve, run_experiment
    from florilegium.common.settings import parse_counts, parse_numbers
    from florilegium.research.studies.fidelity import Grid, study, write_fidelity

    overrides = resolve(None, assignments or [], {"runs-dir": runs_folder(runs_dir)})
    grid = Grid(parse_counts(batch_sizes), parse_numbers(learning_rates), parse_counts(epochs))
    folder, display = Path(str(overrides["runs-dir"])), on_terminal(Console(stderr=True))
    with choose(engine, workers, [overrides], fork=True) as chosen:
        rows = study(
            recipe, overrides, grid, folder, lambda keys: run_experiment(chosen, keys, display), disjoint=disjoint
        )
    target = output or folder / f"{recipe_name(recipe)}-fidelity{'-disjoint' if disjoint else ''}"
    print(write_fidelity(rows, target))
    print(target)


@commands.add("florilegium flamby flamby-heart", "running:sweep")
def flamby(
    recipe: Annotated[str, of_recipe("flamby-heart, flamby-tcga, or a TOML file that extends one of them")],
    engine: EngineOption,
    assignments: Assignments = None,
    draws: Annotated[
        Literal["flamby", "workers", "suite"],
        typer.Option(help="draw as FLamby, as FLamby with worker processes that load batches, or as the suite"),
    ] = "flamby",
    workers: Workers = CORES,
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the table (default: flamby, beside the runs)")] = None,
) -> None:
    """Repeat FLamby's tables with the suite's methods, on FLamby's own initial models and batches, in five seeds."""
    from florilegium.apps.cli.tables import show
    from florilegium.apps.runs.experiment import resolve
    from florilegium.research.studies.flamby import write_flamby

    overrides = resolve(None, assignments or [], {"runs-dir": runs_dir_of(assignments, runs_dir)})
    target = output or Path(str(overrides["runs-dir"])) / "flamby"
    with stoppable():
        made = write_flamby(recipe, overrides, means_of(engine, workers), target, draws=draws)
    show(made.head, made.rows)
    print(target)
