"""Commands that look at runs and models, and list methods, recipes and keys."""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from florilegium.apps.cli.groups import INSPECT, Group
from florilegium.apps.cli.options import (
    Assignments,
    RunName,
    RunsDir,
    Target,
    complete_dataset,
    complete_method,
    complete_tracker,
    of_recipe,
    of_run,
    run_path,
    runs_folder,
)
from florilegium.apps.cli.tables import Cell, Valued, give, show, show_report
from florilegium.common.errors import ConfigurationError, nearest

looking = Group(INSPECT)


@looking.add("florilegium watch RUN")
def watch(
    run: RunName,
    every: Annotated[float, typer.Option(help="seconds between updates; 0: show once", min=0)] = 2.0,
    runs_dir: RunsDir = None,
) -> None:
    """Show a run until it ends: progress, curve, clients a second, expected end, time per phase, skipped clients."""
    from florilegium.apps.runs.watch import watch as look

    look(run_path(run, runs_dir), Console(), every)


@looking.add("florilegium report RUN RUN --output report", "running:Comparison.report")
def report(
    runs: Annotated[list[str], of_run("run ids or folders")],
    html: bool,
    target: Target = Path("report"),
    runs_dir: RunsDir = None,
) -> None:
    """Pool finished runs over seeds and compare them: tables, pictures, and differences client by client."""
    from florilegium.apps.reports.writing import write_report

    folders = []
    for name in runs:
        try:
            folders.append(run_path(name, runs_dir))
        except ConfigurationError:
            if not Path(name).is_dir():
                raise
            folders.append(Path(name))  # `runs/*` names reports, too; they are left out
    show_report(write_report(folders, target, html=html))
    print(target)


@looking.add("florilegium runs --state stopped --last 5", listing=True)
def runs(
    runs_dir: RunsDir = None,
    state: Annotated[str, typer.Option(help="only runs in this state, such as running, completed or stopped")] = "",
    method: Annotated[str, typer.Option(help="only runs of this method", autocompletion=complete_method)] = "",
    last: Annotated[int, typer.Option("--last", "-n", help="number of runs to list; 0: all", min=0)] = 20,
) -> None:
    """List the runs, the newest first: state, method, dataset, seed, rounds evaluated, and main figure."""
    from florilegium.apps.methods.registry import METHODS
    from florilegium.apps.runs.run_list import State, list_folder
    from florilegium.common.settings import folder

    root = folder(runs_folder(runs_dir))
    if not root.is_dir():
        raise ConfigurationError(
            f"runs-dir: there is no folder {root}. The first run makes it; --runs-dir names another"
        )
    if state and state not in (states := get_args(State)):
        raise ConfigurationError(
            f"--state: there is no state '{state}'{nearest(state, states)} Known: {', '.join(states)}."
        )
    found = (run for run in list_folder(str(root)) if state in ("", run.state) and method in ("", run.method))
    shown = list(islice(found, last or None))
    if not shown and method and method not in METHODS:
        raise ConfigurationError(f"--method: '{method}' is no method, nor is a run of it{nearest(method, METHODS)}")
    if not shown:
        print(f"There are no {'such ' if state or method else ''}runs in {root}.", file=sys.stderr)
        return
    figures = {run.figure for run in shown}
    rows = []
    for run in shown:
        value = "" if run.value is None else f"{run.value:.4f}"
        named = value if len(figures) == 1 or not value else f"{run.figure} {value}"
        facts = (run.name, run.state, run.method, run.dataset, run.seed, run.rounds)
        rows.append([*("" if fact is None else str(fact) for fact in facts), named])
    head = ["run", "state", "method", "dataset", "seed", "rounds"]
    if not give([asdict(run) for run in shown]):
        show([*head, *figures] if len(figures) == 1 else [*head, "figure"], rows)
    if next(found, None):
        print(f"Older runs are left out; --last 0 lists all in {root}.", file=sys.stderr)


@looking.add("florilegium predict model images.parquet")
def predict(
    model: Annotated[Path, typer.Argument(help="folder with model.safetensors and card.json")],
    inputs: Annotated[
        Path,
        typer.Argument(help=".parquet or .csv with the dataset's columns, .npy, a picture, or a folder of pictures"),
    ],
    embeddings: Annotated[str, typer.Option(help="file of word vectors, for models whose inputs are words")] = "",
) -> None:
    """Predict with an exported model, or with one kept by a device; write CSV to standard output."""
    from florilegium.apps.runs.predictions import write_predictions

    write_predictions(model, inputs, embeddings)


@looking.add("florilegium export RUN --client 3 --output model", "runs:Run.export")
def export(run: RunName, client: str, target: Target, onnx: bool, runs_dir: RunsDir = None) -> None:
    """Write the model that a client uses after a run; it is personalised if the method personalises."""
    from florilegium.apps.runs.personal import personalise as make

    print(make(run_path(run, runs_dir), target, client, onnx=onnx))


@looking.add("florilegium personalise RUN --data site --output model", "runs:Run.export")
def personalise(
    run: RunName,
    target: Target,
    onnx: bool,
    client: Annotated[str, typer.Option(help="a client of the run's federation, by number or name")] = "",
    data: Annotated[Path | None, typer.Option(help="instead of --client: folder with train.parquet")] = None,
    unlabeled: Annotated[bool, typer.Option("--unlabeled", help="the new client's data have no labels")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Build the model of a client from its data: a client of the run's federation, or a new one."""
    from florilegium.apps.runs.personal import personalise as make

    if bool(client) == (data is not None):
        raise ConfigurationError("personalise: give either --client, of the run's federation, or --data, a folder")
    if client and unlabeled:
        raise ConfigurationError("personalise: --unlabeled goes with --data; for the clients of a run it is known")
    print(make(run_path(run, runs_dir), target, client, data, labeled=not unlabeled, onnx=onnx))


@looking.add("florilegium transfer RUN RUN --target mnist_m")
def transfer(
    runs: Annotated[list[str], of_run("ids or folders of runs")],
    assignments: Assignments = None,
    target: Annotated[
        str,
        typer.Option(
            help="dataset to transfer to (default: the runs' key transfer-target)", autocompletion=complete_dataset
        ),
    ] = "",
    whole: Annotated[
        bool, typer.Option("--whole", help="also train the body on the target dataset, not only the classifier")
    ] = False,
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for transfer.md, transfer.png and models")] = Path("report"),
) -> None:
    """Transfer the features of runs to another dataset: train and test a new classifier there."""
    from florilegium.apps.runs.experiment import read_assignments
    from florilegium.apps.runs.transfer import transfer as carry_out
    from florilegium.apps.runs.transfer import write_transfers

    keys = read_assignments(assignments or [])
    keys |= ({"transfer-target": target} if target else {}) | ({"transfer-train": "whole"} if whole else {})
    paths = [run_path(run, runs_dir) for run in runs]
    results = [carry_out(path, keys, output / path.name) for path in paths]
    print(write_transfers(results, [path.name for path in paths], output))
    print(output)


@looking.add("florilegium methods", listing=True)
def methods(
    vectorised: Annotated[
        bool, typer.Option("--vectorised", help="list only those that key `vectorise` speeds up; imports PyTorch")
    ] = False,
) -> None:
    """List the methods, each with its own configuration keys."""
    from florilegium.apps.methods.layers import why_not
    from florilegium.apps.methods.registry import METHODS
    from florilegium.apps.settings.keys import method_keys

    rows: list[list[Cell]] = []
    for name in METHODS:
        if problem := METHODS.problem(name):  # a broken package must not hide the others
            rows.append([name, problem, "", METHODS.origin(name), []])
            continue
        method, own = METHODS[name], [f"{key.name} = {key.shown_default}" for key in method_keys(name)]
        if not vectorised or not why_not(method, "vectorised"):
            rows.append([name, method.title, method.source, METHODS.origin(name), own])
    show(["method", "what it is", "source", "package", "own keys"], rows)


@looking.add("florilegium recipes ppfe-cifar10-s2", listing=True)
def recipes(
    name: Annotated[str, of_recipe("one to show, as TOML: keys, variants, sweeps, tuning; without it: list all")] = "",
    schema: Annotated[
        bool,
        typer.Option("--schema", help="print the JSON schema of recipes, by which editors complete and check TOML"),
    ] = False,
) -> None:
    """List the recipes, which are papers' experiments, or show one with everything that it inherits."""
    if schema:
        import json

        from florilegium.apps.sweeps.recipe_schema import recipe_schema

        if not give(content := recipe_schema()):
            print(json.dumps(content, ensure_ascii=False, indent=1))
        return
    import tomli_w

    from florilegium.apps.runs.experiment import read_layers, read_recipe
    from florilegium.apps.runs.recipes import find_recipe, introduction, recipe_names
    from florilegium.apps.settings.configuration import defaults
    from florilegium.common.toml import nested

    if name:
        stem, _, variant = name.partition(":")
        layers, keys = read_layers(stem), read_recipe(name)
        variants = {own: nested(keys) for own, keys in layers.variants.items()}
        tables = {} if variant else {"variants": variants, "sweeps": layers.sweeps, "tune": layers.tune}
        content = {**nested(keys), **{what: own for what, own in tables.items() if own}}
        if not give(content):
            print("\n".join(introduction(find_recipe(stem))))
            print(tomli_w.dumps(content), end="")
        return
    rows: list[list[Cell]] = []
    for one in recipe_names():
        layers = read_layers(one)
        method, dataset = (str(layers.keys.get(key, defaults()[key])) for key in ("method", "dataset"))
        purpose = introduction(find_recipe(one))[0].removeprefix("# ")
        rows.append([one, method, dataset, purpose, [*layers.sweeps], [*layers.tune], [*layers.variants]])
    show(["recipe", "method", "dataset", "reproduces", "sweeps", "tune", "variants"], rows)


@looking.add("florilegium keys fedprox", "tables:keys", listing=True)
def keys(word: Annotated[str, typer.Argument(autocompletion=complete_method)]) -> None:
    """List the configuration keys: values, default, meaning; words of PyTorch and Flower find them, too."""
    from florilegium.apps.settings.configuration import sections
    from florilegium.apps.settings.keys import groups, installed_sections

    known = [key for group in groups(sections() | installed_sections()) for key in group.keys]
    rows = [
        (key.name, Valued(key.default, key.shown_default), key.values.replace("\\|", "|"), key.meaning)
        for key in known
        if word in key.name or word in key.also
    ]
    if not rows:
        raise ConfigurationError(
            f"no key contains '{word}'{nearest(word, [key.name for key in known])} `florilegium keys` lists all"
        )
    show(["key", "default", "values", "meaning"], rows)


@looking.add("florilegium track RUN --to mlflow", "runs:Run.track")
def track(
    run: RunName,
    to: Annotated[str, typer.Option(autocompletion=complete_tracker)],
    project: str,
    runs_dir: RunsDir = None,
) -> None:
    """Send a run's figures to a tracker; those that it already has are not sent again."""
    from florilegium.apps.trackers.sending import track as send

    delivery = send(run_path(run, runs_dir), to, project)
    if not delivery.known:
        print("the run has no rounds yet; nothing was sent")
        return
    sent = f"{delivery.rounds} rounds sent" if delivery.rounds else "no new rounds"
    print(f"{sent}: {delivery.place}")
