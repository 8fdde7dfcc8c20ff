"""Commands for what is settled before a run: datasets, their division among clients, privacy budgets."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from florilegium.apps.cli.groups import DATA, PRIVACY, Group
from florilegium.apps.cli.options import Assignments, Recipe, complete_dataset
from florilegium.apps.cli.tables import Cell, Valued, fit, show, tell

if TYPE_CHECKING:
    from florilegium.partitions.shares import Federation
    from florilegium.partitions.spec import Dataset


data = Group(DATA)

LARGEST = 10
"""Classes that are named for each client where there is no room for a column of each class."""


@data.add("florilegium datasets", listing=True)
def datasets() -> None:
    """List the datasets."""
    from florilegium.partitions.datasets import DATASETS
    from florilegium.partitions.spec import DatasetSpec

    rows: list[list[Cell]] = []
    for name in DATASETS:
        spec = None if DATASETS.problem(name) else DATASETS[name]
        if not isinstance(spec, DatasetSpec):  # a function, which describes its data when called; or a broken package
            rows.append([name, "", "", None, DATASETS.origin(name), [], DATASETS.problem(name)])
            continue
        origin = spec.hub or (
            "(scikit-learn)"
            if name == "digits"
            else "(made)"
            if spec.made
            else "(raw files)"
            if spec.raw
            else DATASETS.origin(name)
        )
        shape = "×".join(map(str, spec.shape))
        rows.append([name, spec.kind, shape, spec.classes, origin, [*spec.client_columns], ""])
    show(["dataset", "kind", "input", "classes", "hub id", "natural clients", "problem"], rows)


@data.add("florilegium partition --set partitioner=dirichlet --output clients.png", "tables:partition", listing=True)
def partition(
    recipe: Recipe,
    assignments: Assignments = None,
    output: Annotated[Path | None, typer.Option(help="write a heat map (clients × classes) to this PNG file")] = None,
    devices: Annotated[Path | None, typer.Option(help="write each client's data to a subfolder of this folder")] = None,
    save: Annotated[Path | None, typer.Option(help="write who holds which rows to this .json file")] = None,
) -> None:
    """Show a federation: the number of training examples of each client and class."""
    from florilegium.apps.runs.experiment import resolve
    from florilegium.apps.settings.configuration import complete, parse
    from florilegium.partitions.federation import federate

    settings, _ = parse(complete(resolve(recipe, assignments or [], {})))
    federation, dataset = federate(settings)
    title = f"{settings.dataset}, {settings.partitioner}, seed {settings.seed}: training examples per class"
    _show_clients(federation, dataset, title)
    if output:
        from florilegium.partitions.plots import plot_federation

        plot_federation(
            federation, dataset, output, f"{settings.dataset}: {settings.partitioner}, seed {settings.seed}"
        )
        tell(output)
    if devices:
        from florilegium.partitions.devices import write_device

        for client in range(len(federation)):
            write_device(federation, dataset, client, devices / str(client))
        tell(devices)
    if save:
        from florilegium.partitions.loading import load_dataset
        from florilegium.partitions.split_files import of_federation, write_split

        whole = load_dataset(settings)
        examples = (len(whole.train), 0 if whole.test is None else len(whole.test))
        write_split(of_federation(federation, dataset, examples), save)
        tell(save)


@data.add(
    "florilegium fleet --set fleet.speed=50 --set fleet.upload=2 --output fleet.png", "tables:partition", listing=True
)
def fleet(
    recipe: Recipe,
    assignments: Assignments = None,
    output: Annotated[Path | None, typer.Option(help="write a picture of the fleet to this PNG file")] = None,
) -> None:
    """Show the devices of a simulation: speeds, bandwidths, time for a round, and who is online when."""
    from florilegium.apps.devices.fleet_view import draw_fleet, fleet_rows, fleet_view
    from florilegium.apps.runs.experiment import resolve
    from florilegium.apps.settings.configuration import complete, parse
    from florilegium.common.errors import ConfigurationError

    settings, _ = parse(complete(resolve(recipe, assignments or [], {})))
    if not settings.fleet.on:
        raise ConfigurationError("fleet: all devices are ideal; set fleet.speed, fleet.download or fleet.upload")
    found = fleet_view(settings)
    show(["of all clients", "slowest 5 %", "median", "fastest 5 %"], fleet_rows(found), f"fleet, seed {settings.seed}")
    if output:
        from florilegium.common.pages import write_picture

        write_picture(draw_fleet(found), output)
        tell(output)


def _show_clients(federation: Federation, dataset: Dataset, title: str) -> None:
    """Print a row for each client: group, numbers of examples, and those of each class, or of the largest classes."""
    counts = federation.class_counts(dataset)[:, : dataset.spec.learned.num_strata]
    columns: dict[str, Sequence[Cell]] = {"client": range(len(federation))}
    if any(federation.names):
        columns["name"] = [str(name) for name in federation.names]
    columns["group"] = [
        "unseen" if unseen else "seen" if labeled else "unlabeled"
        for unseen, labeled in zip(federation.unseen, federation.labeled, strict=True)
    ]
    columns |= {"train": [int(size) for size in federation.train.sizes]}
    columns |= {"test": [int(size) for size in federation.test.sizes]}
    if any(federation.angles):
        columns["angle"] = [Valued(angle, f"{angle:g}") for angle in federation.angles]
    if federation.noise is not None:
        columns["noise"] = [Valued(float(level), f"{level:.3g}") for level in federation.noise.levels]
    clients = [*zip(*columns.values(), strict=True)]
    names = [*columns, *map(str, dataset.spec.learned.strata_names)]
    rows: list[list[Cell]] = [
        [*own, *(Valued(int(count), str(count or "·")) for count in row)]
        for own, row in zip(clients, counts, strict=True)
    ]
    if not fit(names, rows):
        names = [*columns, "classes", "largest classes"]
        rows = [
            [
                *own,
                int((row > 0).sum()),
                [f"{number}: {row[number]}" for number in (-row).argsort()[:LARGEST] if row[number]],
            ]
            for own, row in zip(clients, counts, strict=True)
        ]
    show(names, rows, title)


@data.add("florilegium pictures office office-64 --size 64")
def pictures(
    source: Annotated[Path, typer.Argument(help="folder with pictures in subfolders <domain>/<class>/")],
    target: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
    size: Annotated[int, typer.Option(min=8, help="height and width to which pictures are resized")] = 64,
) -> None:
    """Convert folders of pictures to a dataset; each domain can become a client."""
    from florilegium.partitions.sources.picture_folders import write_picture_folders

    write_picture_folders(source, target.absolute(), size)
    print(target.absolute())


@data.add("florilegium speech speech_commands speech")
def speech(
    source: Annotated[Path, typer.Argument(help="folder of Speech Commands: <word>/<speaker>_nohash_<number>.wav")],
    target: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
) -> None:
    """Convert Speech Commands to a dataset of spectrograms in twelve classes; each speaker is a client."""
    from florilegium.partitions.sources.speech import write_speech

    write_speech(source, target.absolute())
    print(target.absolute())


@data.add("florilegium census census --states CA,NY")
def census(
    folder: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
    year: Annotated[int, typer.Option(help="year of the survey")] = 2018,
    states: Annotated[str, typer.Option(help="abbreviations of states, such as CA,NY; all by default")] = "",
    cache: Annotated[Path, typer.Option(help="folder where downloads are kept")] = Path("~/.florilegium/census"),
) -> None:
    """Download the US census (needs folktables) and convert it to a dataset; each state is a client."""
    from florilegium.partitions.sources.census import download, write_census

    write_census(download(year, states.split(",") if states else None, cache.expanduser()), folder.absolute())
    print(folder.absolute())


@data.add("florilegium schema hub:org/name")
def schema(
    dataset: Annotated[
        str, typer.Argument(help="a value of key dataset whose columns are inferred", autocompletion=complete_dataset)
    ],
    output: Annotated[Path | None, typer.Option(help="folder for schema.toml, for devices; without it: print")] = None,
    assignments: Assignments = None,
) -> None:
    """Show the schema inferred for a dataset of your own, or write it to a folder for devices."""
    from florilegium.apps.runs.experiment import resolve
    from florilegium.common.errors import ConfigurationError, nearest
    from florilegium.common.files import write_text
    from florilegium.common.places import read_utf8
    from florilegium.partitions.encoding import encoded
    from florilegium.partitions.loading import dataset_of
    from florilegium.partitions.settings import SourceSettings
    from florilegium.partitions.sources.schema import FILE
    from florilegium.partitions.sources.source import Source

    keys = resolve(None, assignments or [], {"dataset": dataset})
    column = str(keys.pop("client-column", ""))  # the schema's own output asks for it, where several may be meant
    names = {str(field.alias) for field in SourceSettings.model_fields.values()}
    if unknown := [name for name in keys if name not in names]:
        others = ", ".join(sorted({*names, "client-column"}))
        raise ConfigurationError(f"{unknown[0]}: a schema depends on other keys only: {others}")
    source = SourceSettings.model_validate(keys)
    spec = dataset_of(source)
    if not spec.folder:
        raise ConfigurationError(f"dataset: '{dataset}' is a built-in dataset; devices need no schema for it")
    text = read_utf8(Path(spec.folder) / FILE)
    if column:
        named = [name.strip() for name in column.split("+")]
        known = [*encoded(spec, Source.of(source)).train.clients]
        if missing := [name for name in named if name not in known]:
            raise ConfigurationError(
                f"client-column: '{missing[0]}' is no column whose values repeat{nearest(missing[0], known)} "
                f"Such are: {', '.join(known) or 'none'}"
            )
        line = f"clients = {json.dumps(named, ensure_ascii=False)}"
        text, found = re.subn(r"^clients = \[.*?\]$", lambda _: line, text, count=1, flags=re.MULTILINE | re.DOTALL)
        text = text if found else re.sub(r"^(?!#)", lambda _: f"{line}\n", text, count=1, flags=re.MULTILINE)
    if output is None:
        print(text, end="")
        return
    write_text(output / FILE, text)
    print(output.absolute())


@data.add("florilegium split pfllib dataset/Cifar10 split.json --dataset cifar10")
def split(
    suite: Annotated[str, typer.Argument(help="pfllib or fl-bench")],
    source: Annotated[Path, typer.Argument(help="PFLlib's dataset/<Name>, or FL-bench's data/<name>")],
    output: Annotated[Path, typer.Argument(help="file to write, .json; set key file.path to it")],
    dataset: Annotated[str, typer.Option(help="the dataset that was divided", autocompletion=complete_dataset)],
    validation: Annotated[
        str, typer.Option(help="FL-bench's validation rows: refuse them, train on them, or drop them")
    ] = "refuse",
    assignments: Assignments = None,
) -> None:
    """Convert a split made by PFLlib or FL-bench, row by row, to a file for partitioner = "file"."""
    from florilegium.apps.runs.experiment import resolve
    from florilegium.apps.settings.configuration import complete, parse
    from florilegium.partitions.loading import load_dataset
    from florilegium.partitions.sources.foreign_splits import read_foreign
    from florilegium.partitions.split_files import write_split

    settings, _ = parse(complete(resolve(None, assignments or [], {"dataset": dataset})))
    data = load_dataset(settings)
    write_split(read_foreign(suite, source, data, validation), output)
    print(output)


log = logging.getLogger("flwr")

private = Group(PRIVACY)

Sampling = Literal["poisson", "fixed", "slots"]
Mechanism = Literal["gaussian", "tree", "matrix"]
NoiseAt = Literal["server", "device"]


@private.add("florilegium privacy --epsilon 8 --clients 1000 --cohort 100 --rounds 200")
def privacy(
    clients: Annotated[int, typer.Option(help="clients that may take part; or one client's examples")],
    cohort: Annotated[int, typer.Option(help="clients in a round; or the batch size")],
    rounds: Annotated[int, typer.Option(help="number of rounds; or a client's steps in all rounds")],
    epsilon: Annotated[float, typer.Option(help="the budget ε; or give --noise-multiplier")] = 0.0,
    delta: Annotated[float, typer.Option(help="δ, the probability that the guarantee fails")] = 1e-5,
    noise_multiplier: Annotated[float, typer.Option(help="standard deviation of the noise ÷ clip norm")] = 0.0,
    sampling: Annotated[Sampling, typer.Option(help="key privacy.sampling; only poisson amplifies")] = "poisson",
    mechanism: Annotated[Mechanism, typer.Option(help="key privacy.mechanism, for --sampling slots")] = "gaussian",
    noise_at: Annotated[NoiseAt, typer.Option(help="key privacy.noise-at; device is for --sampling fixed")] = "server",
    failing: Annotated[int, typer.Option(help="with --noise-at device: clients of each cohort that fail")] = 0,
    secure_aggregation: Annotated[
        bool, typer.Option("--secure-aggregation", help="with --noise-at device: discrete noise on secure sums")
    ] = False,
    clip_norm: Annotated[float, typer.Option(help="largest norm of a contribution")] = 1.0,
    parameters: Annotated[int, typer.Option(help="parameters of the network, to compare signal and noise")] = 0,
) -> None:
    """Plan a privacy budget before any run: the noise it needs, and the remaining signal-to-noise ratio."""
    from florilegium.common.errors import ConfigurationError
    from florilegium.privacy.delta import delta_warning
    from florilegium.privacy.plan import Devices, check_shown, make_plan
    from florilegium.strategies.settings.server import ServerSettings

    check_shown(clip_norm, parameters)
    if noise_at == "server" and (failing or secure_aggregation):
        raise ConfigurationError("failing, secure-aggregation: these change the account only with --noise-at device")
    keys = ServerSettings()
    devices = Devices(failing, secure_aggregation, keys.secure_colluding, keys.secure_vanishing)
    plan = make_plan(
        clients, cohort, rounds, delta, epsilon=epsilon, noise_multiplier=noise_multiplier, sampling=sampling,
        mechanism=mechanism, devices=devices if noise_at == "device" else None,
    )  # fmt: skip
    if warning := delta_warning("delta", delta, clients, "clients"):
        log.warning("%s", warning)
    print(plan.table(clip_norm, parameters), end="")
