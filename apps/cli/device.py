"""``florilegium device``: commands for the owner of a device: check data, list state, predict, export, delete."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from florilegium.apps.cli.groups import DEVICES, Group
from florilegium.apps.cli.options import Assignments, complete_dataset
from florilegium.apps.cli.owner import logs, policy
from florilegium.apps.cli.tables import show
from florilegium.common.errors import ConfigurationError

device = Group(
    DEVICES, no_args_is_help=True, help="On a device: check data, join runs; list, use or delete what it keeps."
)

device.add_typer(policy, name="policy")
device.add_typer(logs, name="log")

Run = Annotated[str, typer.Argument(help="the run's name")]
StateDir = Annotated[Path, typer.Option(help="state-dir of the SuperNode's --node-config")]
Client = Annotated[str, typer.Option(help="client-id, needed if the folder holds several clients")]


@device.add('florilegium device check \'data-path="/data/a" client-id="a"\' --dataset mnist')
def check(
    node_config: Annotated[
        str, typer.Argument(help='the SuperNode\'s --node-config: \'data-path="/data/a" client-id="a"\'')
    ],
    dataset: Annotated[
        str, typer.Option(help="dataset of the runs that the device will join", autocompletion=complete_dataset)
    ],
    assignments: Assignments = None,
) -> None:
    """Check a device's data: read them as a run would and print a summary.

    Keys of the run that say what is learned, and how, are given by --set: task, positive, standardise, and the like.
    """
    from florilegium.apps.assembly.node_config import own_data, read_node
    from florilegium.apps.runs.experiment import resolve
    from florilegium.apps.settings.configuration import parse_source
    from florilegium.partitions.clientdata import CPU
    from florilegium.partitions.datasets import find_spec
    from florilegium.partitions.device_data import report
    from florilegium.partitions.loading import dataset_of

    owner = read_node(node_config)
    own = {"tokenizer": owner.base} if owner.base else {}
    settings = parse_source(resolve(None, assignments or [], {"dataset": owner.dataset or dataset} | own))
    find_spec(settings.dataset)  # what the data are must be known without other devices' data
    spec = dataset_of(settings)
    data = own_data(owner, spec, CPU, embeddings="", cache_dir=settings.cache_dir, duplicates=settings.duplicates)
    print(f"{owner.client_id}: {report(data, spec)}")


@device.add(
    "florilegium device serve --insecure --superlink 127.0.0.1:8000 "
    '--node-config \'data-path="/data/a" client-id="a" state-dir="/var/lib/a"\'',
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(
    context: typer.Context,
    node_config: Annotated[str, typer.Option(help='\'data-path="/data/a" client-id="a" state-dir="/var/lib/a"\'')],
    dataset: Annotated[
        str, typer.Option(help="check first that the data can be read as this dataset", autocompletion=complete_dataset)
    ] = "",
    assignments: Assignments = None,
    owner: Annotated[
        Path | None, typer.Option(help="folder of the owner's policy; without it, every run may do what its code does")
    ] = None,
) -> None:
    """Run a SuperNode that keeps PyTorch, network and data in memory between messages.

    All other options are those of flower-supernode: --superlink HOST:PORT, --root-certificates, and so on.
    """
    from florilegium.apps.assembly.node_config import read_node
    from florilegium.apps.devices.flower_inside import hand_over, usable

    device = read_node(node_config)
    if owner is not None and not usable():
        raise ConfigurationError("--owner: without resident processes (see the log) nothing would enforce the policy")
    if dataset:  # in a process of its own, since what it imports and reads is not needed here
        words = [sys.executable, "-P", "-m", "florilegium", "device", "check", node_config, "--dataset", dataset]
        words += [word for assignment in assignments or [] for word in ("--set", assignment)]
        if code := subprocess.run(words, check=False).returncode:
            raise typer.Exit(code)
    options = ["--node-config", node_config, *context.args]
    if not usable():
        needs = "resident processes need a system that can fork, and"
        hand_over("flower-supernode", options, needs, "starts a process for every message")
    from florilegium.apps.devices.supernode import serve as take_part  # imports what other versions of Flower may lack

    if owner is None:
        take_part(options)
    else:
        from florilegium.apps.devices.owned import keeper

        take_part(options, keeper(owner, device))


@device.add("florilegium device status --state-dir /var/lib/a", listing=True)
def status(state_dir: StateDir) -> None:
    """List what the device keeps: run, client, last round, model, and privacy budget spent."""
    from florilegium.apps.devices.stored_runs import STATUS
    from florilegium.apps.devices.stored_runs import status as look

    show(STATUS, look(state_dir), str(state_dir))


@device.add("florilegium device predict RUN new.csv --state-dir /var/lib/a")
def predict(
    run: Run,
    inputs: Annotated[Path, typer.Argument(help=".parquet, .csv, .npy, a picture, or a folder of pictures")],
    state_dir: StateDir,
    client: Client = "",
    embeddings: Annotated[str, typer.Option(help="file of word vectors, for models whose inputs are words")] = "",
    schema: Annotated[Path | None, typer.Option(help="schema file that maps the device's column names")] = None,
) -> None:
    """Predict with the device's own model; write CSV to standard output."""
    from florilegium.apps.devices.stored_runs import model_folder
    from florilegium.apps.runs.predictions import write_predictions

    write_predictions(model_folder(state_dir, run, client), inputs, embeddings, schema)


@device.add("florilegium device export RUN model --state-dir /var/lib/a --onnx", "runs:Run.export")
def export(
    run: Run,
    target: Annotated[Path, typer.Argument()],
    state_dir: StateDir,
    onnx: bool,
    client: Client = "",
) -> None:
    """Copy the device's own model to a folder."""
    from florilegium.apps.devices.stored_runs import export as copy
    from florilegium.apps.devices.stored_runs import model_folder

    print(copy(model_folder(state_dir, run, client), target, onnx=onnx))


@device.add("florilegium device forget RUN --state-dir /var/lib/a")
def forget(
    run: Run,
    state_dir: StateDir,
    client: Client = "",
    yes: Annotated[bool, typer.Option("--yes", help="delete without confirmation")] = False,
    owner: Annotated[
        Path | None, typer.Option(help="the owner's folder: the device also withdraws from the run, and logs this")
    ] = None,
) -> None:
    """Delete everything that the device keeps of a run: models, heads, and the privacy account."""
    from florilegium.apps.devices.stored_runs import forget as delete
    from florilegium.apps.devices.stored_runs import kept
    from florilegium.owner.home import open_home

    home = open_home(owner) if owner else None
    folders = "\n".join(str(one.folder) for one in kept(state_dir, run, client))
    if not yes:
        typer.confirm(f"{folders}\nDelete all of it?", abort=True)
    if home is not None:
        home.withdraw(run=run)  # first, so that nothing of it is written again
    gone = delete(state_dir, run, client)
    if home is not None:
        home.log().add("forgotten", run=run, folders=[str(folder) for folder in gone])
    for folder in gone:
        print(folder)
