"""The command line. Each command imports the modules that do its work only when it is called."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from florilegium.apps.cli_device import device
from florilegium.apps.cli_options import CORES, Assignments, EngineOption, Recipe, RunsDir, Workers, runs_folder
from florilegium.apps.cli_tools import tools
from florilegium.apps.packages import add_folder
from florilegium.apps.progress import on_terminal
from florilegium.apps.studies.commands import studies
from florilegium.common.errors import FlorilegiumError, StoppedError

cli = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
cli.add_typer(tools)
cli.add_typer(studies)
cli.add_typer(device, name="device")


def _options(runs_dir: Path | None) -> dict[str, bool | int | float | str]:
    return {"runs-dir": str(runs_dir)} if runs_dir else {}


def _show(table: Table) -> None:
    """Print a table: as wide as the terminal, or 240 columns wide into a file or pipe."""
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def _print_version(wanted: bool) -> None:
    if wanted:
        from florilegium.apps.version import version

        print(version())
        raise typer.Exit


@cli.callback()
def florilegium(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print version and commit")
    ] = False,
) -> None:
    """Federated-learning methods as one Flower App."""


@cli.command()
def run(
    recipe: Recipe = None,
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Run one experiment in a simulation. The last line on standard output is the run's folder."""
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, resolve, run_experiment, warn_of_idle_keys

    overrides = resolve(recipe, assignments or [], _options(runs_dir))
    warn_of_idle_keys(read_assignments(assignments or []), [overrides])
    with _stoppable(), choose(engine, workers, [overrides], fork=True) as chosen:
        path = run_experiment(chosen, overrides, on_terminal(Console(stderr=True)))
    print(path)


@cli.command()
def compare(
    methods: Annotated[list[str], typer.Argument(help="methods to run on the same federation, cohorts and seed")],
    recipe: Annotated[str | None, typer.Option(help="a recipe's name, or a TOML file")] = None,
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")] = None,
) -> None:
    """Run several methods on the same federation and compare them in one table and one picture."""
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, resolve, run_experiment, warn_of_idle_keys
    from florilegium.apps.methods import METHODS
    from florilegium.apps.report import write_report
    from florilegium.common.errors import ConfigurationError, nearest

    for method in methods:
        if method not in METHODS:
            raise ConfigurationError(
                f"'{method}' is not a method{nearest(method, METHODS)} Known: {', '.join(METHODS)}."
            )
    display, paths = on_terminal(Console(stderr=True)), []
    wanted = [resolve(recipe, assignments or [], {**_options(runs_dir), "method": method}) for method in methods]
    warn_of_idle_keys(read_assignments(assignments or []), wanted)
    with _stoppable(), choose(engine, workers, wanted, fork=True) as chosen:
        for overrides in wanted:
            paths.append(run_experiment(chosen, overrides, display))
    target = output or paths[0].parent / f"compare-{paths[0].name}"
    print(write_report(paths, target))
    print(target)


@cli.command()
def sweep(
    recipe: Annotated[str, typer.Argument(help="a recipe's name, or a TOML file")],
    name: Annotated[str, typer.Argument(help="one of the recipe's sweeps: a table or figure of a paper")],
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
    output: Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")] = None,
) -> None:
    """Reproduce a table or figure of a paper: carry out a recipe's sweep. Finished runs are not repeated."""
    from florilegium.apps.engines import engine as choose
    from florilegium.apps.experiment import read_assignments, recipe_name, resolve, run_experiment, warn_of_idle_keys
    from florilegium.apps.sweep import cells, read_sweep, run_cells, unfinished, write_sweep

    overrides = resolve(None, assignments or [], {"runs-dir": runs_folder(runs_dir)})
    wanted, display = cells(recipe, name, overrides), on_terminal(Console(stderr=True))
    folder = Path(str(overrides["runs-dir"]))
    warn_of_idle_keys(read_assignments(assignments or []), [dict(cell.keys) for cell in wanted])
    with _stoppable(), choose(engine, workers, unfinished(wanted, folder), fork=True) as chosen:
        paths = run_cells(wanted, folder, lambda keys: run_experiment(chosen, keys, display))
    target = output or folder / f"{recipe_name(recipe)}-{name}"
    print(write_sweep(f"{recipe_name(recipe)}: {name}", read_sweep(recipe, name), wanted, paths, target))
    print(target)


@cli.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="run ids or folders")],
    runs_dir: RunsDir = None,
    output: Annotated[Path, typer.Option(help="folder for report.md and report.png")] = Path("report"),
) -> None:
    """Turn finished runs into a Markdown table and a picture."""
    from florilegium.apps.report import write_report
    from florilegium.strategies.core.run_folder import find_run

    print(write_report([find_run(name, runs_folder(runs_dir)) for name in runs], output))
    print(output)


@cli.command()
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
    _show(table)
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


@cli.command()
def methods(
    vectorised: Annotated[
        bool, typer.Option("--vectorised", help="list only those that key `vectorise` speeds up; imports PyTorch")
    ] = False,
) -> None:
    """List the methods, each with its own configuration keys."""
    from florilegium.apps.keys import method_keys
    from florilegium.apps.methods import METHODS
    from florilegium.common.promises import gap

    table = Table("method", "what it is", "source", "own keys", "package")
    for name in METHODS:
        if problem := METHODS.problem(name):  # a broken package must not hide the others
            table.add_row(name, problem, "", "", METHODS.origin(name))
            continue
        method, own = METHODS[name], [f"{key.name} = {key.shown_default}" for key in method_keys(name)]
        if not vectorised or not gap(method.client_class(), "vectorise_gap", method.hyper()()):
            table.add_row(name, method.title, method.source, "\n".join(own), METHODS.origin(name))
    _show(table)


@cli.command()
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
    _show(table)


@cli.command()
def app(folder: Annotated[Path, typer.Argument(help="a new folder")]) -> None:
    """Write the Flower app to a folder for `flwr run FOLDER`; needed if the package is installed, not checked out."""
    from florilegium.apps.app_folder import write_app

    print(write_app(folder))


@cli.command()
def new(
    kind: Annotated[Literal["method", "network", "dataset"], typer.Argument(help="what the package provides")],
    name: Annotated[str, typer.Argument(help="its name in the configuration, such as fed-mine")],
    folder: Annotated[Path, typer.Option(help="where to write the package's folder")] = Path(),
) -> None:
    """Write a small package with a method, network or dataset of your own: code, a recipe, and a test that passes."""
    from florilegium.apps.scaffold import write_package

    path = write_package(kind, name, folder)
    print(f"{path}\ntry it: pip install -e {path}; python -m pytest {path}; florilegium run {path / 'recipe.toml'}")


@cli.command()
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
    _show(table)


@cli.command()
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


@cli.command()
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


@cli.command()
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


def _end(number: int, frame: FrameType | None) -> None:
    """End as on Ctrl-C, so that a run notes it and its processes end too."""
    raise KeyboardInterrupt(signal.Signals(number).name)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Context in which a run's words on being stopped become an error message."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(str(error) or "stopped") from error


def main() -> None:
    """Run the command line. Wrong input exits with status 2, a failed run with 1; both print one message."""
    # While modules are imported there is no garbage: looking for some is a quarter of PyTorch's import time.
    gc.disable()
    atexit.register(gc.freeze)  # nor is there any at the end, where looking for it takes a second
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _end)
    add_folder(Path.cwd())  # so that `--set method=mine:Client` finds mine.py here
    try:
        cli(standalone_mode=True)
    except FlorilegiumError as error:
        with suppress(OSError):  # the terminal may have been closed
            Console(stderr=True).print(f"error: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
