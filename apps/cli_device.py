"""``florilegium device``: what the owner of a device asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

device = typer.Typer(no_args_is_help=True, help="What a device keeps of its runs: look at it, use it, delete it.")

Run = Annotated[str, typer.Argument(help="the run's name")]
StateDir = Annotated[Path, typer.Option(help="state-dir of the SuperNode's --node-config")]
Client = Annotated[str, typer.Option(help="client-id, where the folder holds several")]


@device.command()
def check(
    node_config: Annotated[str, typer.Argument(help='as for the SuperNode: \'data-path="/data/a" client-id="a"\'')],
    dataset: Annotated[str, typer.Option(help="the dataset of the runs to take part in")],
) -> None:
    """Read a device's data as a run would, and say what was found."""
    from flwr.common.config import parse_config_args

    from florilegium.apps.device_settings import own_data, parse_node
    from florilegium.apps.settings import defaults
    from florilegium.partitions.clientdata import CPU
    from florilegium.partitions.datasets import find_spec
    from florilegium.partitions.device_data import report

    owner = parse_node(parse_config_args([node_config]))
    dataset, cache_dir = owner.dataset or dataset, str(defaults()["cache-dir"])
    data = own_data(owner, dataset, CPU, embeddings="", cache_dir=cache_dir)
    print(f"{owner.client_id}: {report(data, find_spec(dataset))}")


@device.command()
def status(state_dir: StateDir) -> None:
    """List what is kept: of which run and client, up to which round, and what it has cost in privacy."""
    from florilegium.apps.device import status as look

    Console().print(look(state_dir))


@device.command()
def predict(
    run: Run,
    inputs: Annotated[Path, typer.Argument(help=".parquet, .csv, .npy, a picture, or a folder of pictures")],
    state_dir: StateDir,
    client: Client = "",
    embeddings: Annotated[str, typer.Option(help="the file of word vectors, for models of words")] = "",
    schema: Annotated[Path | None, typer.Option(help="the device's own names of columns, as in its data")] = None,
) -> None:
    """Predict with the device's own model; CSV on standard output."""
    from florilegium.apps.device import model_folder
    from florilegium.apps.predictions import write_predictions

    write_predictions(model_folder(state_dir, run, client), inputs, embeddings, schema)


@device.command()
def export(
    run: Run,
    output: Annotated[Path, typer.Argument(help="folder for model.safetensors and card.json")],
    state_dir: StateDir,
    client: Client = "",
    onnx: Annotated[bool, typer.Option("--onnx", help="also write model.onnx")] = False,
) -> None:
    """Copy the device's own model to a folder."""
    from florilegium.apps.device import export as copy
    from florilegium.apps.device import model_folder

    print(copy(model_folder(state_dir, run, client), output, onnx=onnx))


@device.command()
def forget(
    run: Run,
    state_dir: StateDir,
    client: Client = "",
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete all that is kept of a run: models, heads, and the account of privacy."""
    from florilegium.apps.device import forget as delete
    from florilegium.apps.device import kept

    folders = "\n".join(str(one.folder) for one in kept(state_dir, run, client))
    if not yes:
        typer.confirm(f"{folders}\nDelete all of it?", abort=True)
    for folder in delete(state_dir, run, client):
        print(folder)
