"""Commands that look at runs and models, and list methods, recipes and keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from florilegium.apps.cli_options import Html, RunsDir, runs_folder
from florilegium.apps.cli_tables import show

looking = typer.Typer()


@looking.command()
def watch(
    run: Annotated[str, typer.Argument(help="a run's id or folder")],
    every: Annotated[float, typer.Option(help="seconds between updates; 0: show once", min=0)] = 2.0,
    runs_dir: RunsDir = None,
) -> None:
    """Show a run's progress, time per phase, and skipped clients, until it ends."""
    from florilegium.apps.watch import watch as look
    from florilegium.strategies.core.run_folder import find_run

    look(find_run(run, runs_folder(runs_dir)), Console(), every)


@looking.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="run ids or folders")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for report.md and report.png")] = Path("report"),
    html: Html = False,
) -> None:
    """Pool finished runs over seeds and compare them: tables, pictures, and differences client by client."""
    from florilegium.apps.reports.writing import write_report
    from florilegium.strategies.core.run_folder import find_run

    print(write_report([find_run(name, runs_folder(runs_dir)) for name in runs], output, html=html))
    print(output)


@looking.command()
def predict(
    model: Annotated[Path, typer.Argument(help="folder with model.safetensors and card.json")],
    inputs: Annotated[
        Path,
        typer.Argument(help=".parquet or .csv with the dataset's columns, .npy, a picture, or a folder of pictures"),
    ],
    embeddings: Annotated[str, typer.Option(help="file of word vectors, for models whose inputs are words")] = "",
) -> None:
    """Predict with an exported model, or with one kept by a device; write CSV to standard output."""
    from florilegium.apps.predictions import write_predictions

    write_predictions(model, inputs, embeddings)


@looking.command()
def export(
    run: Annotated[str, typer.Argument(help="a run's id or folder")],
    client: Annotated[str, typer.Option(help="the client's number, or the name of a natural client")],
    output: Annotated[Path, typer.Option(help="folder for model.safetensors and card.json")],
    runs_dir: RunsDir = None,
) -> None:
    """Write the model that a client uses after a run; it is personalised if the method personalises."""
    from florilegium.apps.personal import personalise as make
    from florilegium.strategies.core.run_folder import find_run

    print(make(find_run(run, runs_folder(runs_dir)), output, client))


@looking.command()
def personalise(
    run: Annotated[str, typer.Argument(help="a run's id or folder")],
    output: Annotated[Path, typer.Option(help="folder for model.safetensors and card.json")],
    client: Annotated[str, typer.Option(help="a client of the run's federation, by number or name")] = "",
    data: Annotated[Path | None, typer.Option(help="or: folder with a new client's train.parquet")] = None,
    unlabeled: Annotated[bool, typer.Option("--unlabeled", help="the new client's data have no labels")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Build the model of a client from its data: a client of the run's federation, or a new one."""
    from florilegium.apps.personal import personalise as make
    from florilegium.common.errors import ConfigurationError
    from florilegium.strategies.core.run_folder import find_run

    if bool(client) == (data is not None):
        raise ConfigurationError("personalise: give either --client, of the run's federation, or --data, a folder")
    if client and unlabeled:
        raise ConfigurationError(
            "personalise: --unlabeled is said of --data; the run knows whether its clients have labels"
        )
    print(make(find_run(run, runs_folder(runs_dir)), output, client, data, labeled=not unlabeled))


@looking.command()
def methods() -> None:
    """List the methods, each with its own configuration keys."""
    from florilegium.apps.keys import method_keys
    from florilegium.apps.methods import METHODS

    table = Table("method", "what it is", "source", "own keys", "package")
    for name in METHODS:
        if problem := METHODS.problem(name):  # a broken package must not hide the others
            table.add_row(name, problem, "", "", METHODS.origin(name))
            continue
        method, own = METHODS[name], [f"{key.name} = {key.shown_default}" for key in method_keys(name)]
        table.add_row(name, method.title, method.source, "\n".join(own), METHODS.origin(name))
    show(table)


@looking.command()
def keys(
    word: Annotated[str, typer.Argument(help="list only keys that contain this, such as a method's name")] = "",
) -> None:
    """List the configuration keys: values, default, meaning."""
    from florilegium.apps.keys import groups, installed_sections
    from florilegium.apps.settings import sections
    from florilegium.common.errors import ConfigurationError

    table = Table("key", "values", "default", "meaning")
    for group in groups(sections() | installed_sections()):
        for key in group.keys:
            if word in key.name:
                table.add_row(key.name, key.values.replace("\\|", "|"), key.shown_default, key.meaning)
    if not table.rows:
        raise ConfigurationError(f"no key contains '{word}'; `florilegium keys` lists all")
    show(table)


@looking.command()
def track(
    run: Annotated[str, typer.Argument(help="a run's id or folder")],
    to: Annotated[str, typer.Option(help="tensorboard, mlflow, wandb, or package.module:Class")],
    project: Annotated[str, typer.Option(help="name that groups runs (default: the run's key tracker-project)")] = "",
    runs_dir: RunsDir = None,
) -> None:
    """Send a run's figures to a tracker; what it has already is not sent again."""
    from florilegium.apps.trackers.sending import track as send
    from florilegium.strategies.core.run_folder import find_run

    delivery = send(find_run(run, runs_folder(runs_dir)), to, project)
    sent = f"{delivery.rounds} rounds sent" if delivery.rounds else "no new rounds"
    print(f"{sent}: {delivery.place}")
