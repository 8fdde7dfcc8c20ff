"""Commands around runs: watch a run, plan a privacy budget, write datasets and splits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from florilegium.apps.cli_options import CORES, Assignments, EngineOption, RunsDir, Workers, runs_folder

tools = typer.Typer()


@tools.command()
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


@tools.command()
def watch(
    run: Annotated[str, typer.Argument(help="a run's id or folder")],
    every: Annotated[float, typer.Option(help="seconds between updates; 0: show once", min=0)] = 2.0,
    runs_dir: RunsDir = None,
) -> None:
    """Show a run's progress, time per phase, and skipped clients, until it ends."""
    from florilegium.apps.watch import watch as look
    from florilegium.strategies.core.run_folder import find_run

    look(find_run(run, runs_folder(runs_dir)), Console(), every)


@tools.command()
def pictures(
    source: Annotated[Path, typer.Argument(help="folder with pictures in subfolders <domain>/<class>/")],
    target: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
    size: Annotated[int, typer.Option(min=8, help="height and width that pictures are resized to")] = 64,
) -> None:
    """Make a dataset from folders of pictures, whose domains may be clients."""
    from florilegium.partitions.sources.picture_folders import write_picture_folders

    write_picture_folders(source, target.absolute(), size)
    print(target.absolute())


@tools.command()
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


@tools.command()
def privacy(
    clients: Annotated[int, typer.Option(help="clients that may take part; or one client's examples")],
    cohort: Annotated[int, typer.Option(help="clients in a round; or the batch size")],
    rounds: Annotated[int, typer.Option(help="number of rounds; or a client's steps in all rounds")],
    epsilon: Annotated[float, typer.Option(help="the budget ε; or give --noise-multiplier")] = 0.0,
    delta: Annotated[float, typer.Option(help="δ, the probability that the guarantee fails")] = 1e-5,
    noise_multiplier: Annotated[float, typer.Option(help="standard deviation of the noise ÷ clip norm")] = 0.0,
    fixed: Annotated[bool, typer.Option("--fixed", help="cohorts of a fixed size: no amplification")] = False,
    clip_norm: Annotated[float, typer.Option(help="largest norm of a contribution")] = 1.0,
    parameters: Annotated[int, typer.Option(help="parameters of the network, to compare signal and noise")] = 0,
) -> None:
    """Plan a privacy budget before any run: the noise it needs, and the remaining signal-to-noise ratio."""
    from florilegium.apps.privacy_plan import make_plan

    plan = make_plan(
        clients, cohort, rounds, delta, epsilon=epsilon, noise_multiplier=noise_multiplier, poisson=not fixed
    )
    print(plan.table(clip_norm, parameters))


@tools.command()
def speech(
    source: Annotated[Path, typer.Argument(help="folder of Speech Commands: <word>/<speaker>_nohash_<number>.wav")],
    target: Annotated[Path, typer.Argument(help="folder to write the dataset to; set key dataset to it")],
) -> None:
    """Make a dataset from Speech Commands: spectrograms in twelve classes; clients are the speakers."""
    from florilegium.partitions.sources.speech import write_speech

    write_speech(source, target.absolute())
    print(target.absolute())


@tools.command()
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


@tools.command()
def tune(
    recipe: Annotated[str, typer.Argument(help="a recipe's name, or a TOML file")],
    name: Annotated[str, typer.Argument(help="which table tune.NAME of the recipe")],
    assignments: Assignments = None,
    workers: Workers = CORES,
    engine: EngineOption = "auto",
    runs_dir: RunsDir = None,
) -> None:
    """Tune methods alike on held-back training examples: same trials, same budget. A stopped tuning goes on."""
    from florilegium.apps.experiment import resolve
    from florilegium.apps.progress import on_terminal
    from florilegium.apps.tuning.report import choices
    from florilegium.apps.tuning.trials import tune as carry_out
    from florilegium.common.errors import StoppedError

    overrides = resolve(None, assignments or [], {"runs-dir": runs_folder(runs_dir)})
    try:
        tuning = carry_out(recipe, name, overrides, engine, workers, on_terminal(Console(stderr=True)), fork=True)
    except KeyboardInterrupt as error:
        raise StoppedError(str(error) or "stopped") from error
    print(choices(tuning))
    print(tuning.plan.folder)
    tuning.require_choices()
