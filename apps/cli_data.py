"""Commands for datasets, and for dividing them among clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from florilegium.apps.cli_options import Assignments, Recipe
from florilegium.apps.cli_tables import show

data = typer.Typer()


@data.command()
def datasets() -> None:
    """List the datasets."""
    from florilegium.partitions.datasets import DATASETS
    from florilegium.partitions.spec import DatasetSpec

    table = Table("dataset", "hub id", "kind", "input", "classes", "natural clients")
    for name in DATASETS:
        spec = None if DATASETS.problem(name) else DATASETS[name]
        if not isinstance(spec, DatasetSpec):  # a function, which describes its data when called; or a broken package
            table.add_row(name, DATASETS.origin(name), DATASETS.problem(name), "", "", "")
            continue
        shape = "×".join(map(str, spec.shape))
        table.add_row(
            name,
            spec.hub or ("(scikit-learn)" if name == "digits" else "(made)" if spec.made else DATASETS.origin(name)),
            spec.kind,
            shape,
            str(spec.classes),
            ", ".join(spec.client_columns),
        )
    show(table)


@data.command()
def partition(
    recipe: Recipe = None,
    assignments: Assignments = None,
    output: Annotated[Path | None, typer.Option(help="write a heat map (clients × classes) to this PNG file")] = None,
    devices: Annotated[Path | None, typer.Option(help="write each client's data to a subfolder of this folder")] = None,
    save: Annotated[Path | None, typer.Option(help="write who holds which rows to this .json file")] = None,
) -> None:
    """Show a federation: the number of training examples of each client and class."""
    from florilegium.apps.experiment import resolve
    from florilegium.apps.settings import complete, parse
    from florilegium.partitions.federation import federate

    settings, _ = parse(complete(resolve(recipe, assignments or [], {})))
    federation, dataset = federate(settings)
    counts = federation.class_counts(dataset)
    many = dataset.spec.classes > 20
    table = Table(
        title=f"{settings.dataset}, {settings.partitioner}, seed {settings.seed}: training examples per class"
    )
    for column in ("client", "name", "group", "train", "test", "angle"):
        table.add_column(column, justify="right")
    for name in ["classes held"] if many else [str(c) for c in range(dataset.spec.classes)]:
        table.add_column(name, justify="right")
    for i, row in enumerate(counts):
        group = "unseen" if federation.unseen[i] else "seen" if federation.labeled[i] else "unlabeled"
        cells = [str((row > 0).sum())] if many else [str(count or "·") for count in row]
        sizes = (str(federation.train.sizes[i]), str(federation.test.sizes[i]))
        table.add_row(str(i), str(federation.names[i]), group, *sizes, f"{federation.angles[i]:g}", *cells)
    show(table)
    if output:
        from florilegium.partitions.plots import plot_federation

        plot_federation(
            federation, dataset, output, f"{settings.dataset}: {settings.partitioner}, seed {settings.seed}"
        )
        print(output)
    if devices:
        from florilegium.partitions.devices import write_device

        for client in range(len(federation)):
            write_device(federation, dataset, client, devices / str(client))
        print(devices)
    if save:
        from florilegium.partitions.federation import whole_dataset
        from florilegium.partitions.split_files import of_federation, write_split

        whole = whole_dataset(settings)
        examples = (len(whole.train), 0 if whole.test is None else len(whole.test))
        write_split(of_federation(federation, dataset, examples), save)
        print(save)


@data.command()
def pictures(
    source: Annotated[Path, typer.Argument(help="folder with pictures in subfolders <domain>/<class>/")],
    target: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
    size: Annotated[int, typer.Option(min=8, help="height and width that pictures are resized to")] = 64,
) -> None:
    """Make a dataset from folders of pictures, whose domains may be clients."""
    from florilegium.partitions.sources.picture_folders import write_picture_folders

    write_picture_folders(source, target.absolute(), size)
    print(target.absolute())


@data.command()
def speech(
    source: Annotated[Path, typer.Argument(help="folder of Speech Commands: <word>/<speaker>_nohash_<number>.wav")],
    target: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
) -> None:
    """Make a dataset from Speech Commands: spectrograms in twelve classes; clients are the speakers."""
    from florilegium.partitions.sources.speech import write_speech

    write_speech(source, target.absolute())
    print(target.absolute())


@data.command()
def census(
    folder: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
    year: Annotated[int, typer.Option(help="year of the survey")] = 2018,
    states: Annotated[str, typer.Option(help="abbreviations of states, such as CA,NY; all by default")] = "",
    cache: Annotated[Path, typer.Option(help="folder where downloads are kept")] = Path("~/.florilegium/census"),
) -> None:
    """Download the US census (needs folktables) and write it as a dataset whose clients are the states."""
    from florilegium.partitions.sources.census import download, write_census

    write_census(download(year, states.split(",") if states else None, cache.expanduser()), folder.absolute())
    print(folder.absolute())


@data.command()
def schema(
    dataset: Annotated[str, typer.Argument(help="a value of key dataset whose columns are inferred")],
    output: Annotated[Path | None, typer.Option(help="folder for schema.toml, for devices; without it: print")] = None,
    assignments: Assignments = None,
) -> None:
    """Show what a dataset without a schema was inferred to be, or write it to a folder for devices."""
    from florilegium.apps.experiment import resolve
    from florilegium.common.errors import ConfigurationError
    from florilegium.common.files import write_text
    from florilegium.partitions.loading import dataset_of
    from florilegium.partitions.settings import SourceSettings
    from florilegium.partitions.sources.schema import FILE

    keys = resolve(None, assignments or [], {"dataset": dataset})
    names = {str(field.alias) for field in SourceSettings.model_fields.values()}
    if unknown := [name for name in keys if name not in names]:
        raise ConfigurationError(f"{unknown[0]}: a schema depends on other keys only: {', '.join(sorted(names))}")
    spec = dataset_of(SourceSettings.model_validate(keys))
    if not spec.folder:
        raise ConfigurationError(f"dataset: '{dataset}' is known everywhere by its name; devices need no schema")
    text = (Path(spec.folder) / FILE).read_text(encoding="utf-8")
    if output is None:
        print(text, end="")
        return
    write_text(output / FILE, text)
    print(output.absolute())


@data.command()
def split(
    suite: Annotated[str, typer.Argument(help="pfllib or fl-bench")],
    source: Annotated[Path, typer.Argument(help="PFLlib's dataset/<Name>, or FL-bench's data/<name>")],
    output: Annotated[Path, typer.Argument(help="file to write, .json; set key file.path to it")],
    dataset: Annotated[str, typer.Option(help="the dataset that was divided")],
    validation: Annotated[
        str, typer.Option(help="what FL-bench's validation rows become: refuse, train, drop")
    ] = "refuse",
    assignments: Assignments = None,
) -> None:
    """Turn a split that PFLlib or FL-bench made into a file for partitioner = "file", row for row."""
    from florilegium.apps.experiment import resolve
    from florilegium.apps.settings import complete, parse
    from florilegium.partitions.loading import load_dataset
    from florilegium.partitions.sources.foreign_splits import read_foreign
    from florilegium.partitions.split_files import write_split

    settings, _ = parse(complete(resolve(None, assignments or [], {"dataset": dataset})))
    data = load_dataset(settings, settings.embeddings)
    write_split(read_foreign(suite, source, data, validation), output)
    print(output)
