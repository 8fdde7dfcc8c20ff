"""Options and arguments shared by several commands, and the words that the shell completes.

The shell waits for them, so that little is imported here, and never PyTorch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from florilegium.apps.cli.completion import NAMED, complete_assignment, names_in
from florilegium.common.errors import ConfigurationError, StoppedError

if TYPE_CHECKING:
    from florilegium.apps.engines.base import Means


complete_method = names_in(NAMED["method"])
complete_dataset = names_in(NAMED["dataset"])
complete_tracker = names_in(NAMED["tracker"])
complete_engine = names_in("florilegium.apps.engines.registry:ENGINES", "auto")


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes whose names begin so."""
    from florilegium.apps.runs.recipes import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps of the recipe before it whose names begin so."""
    return _complete_table(context, "sweeps", incomplete)


def complete_tuning(context: typer.Context, incomplete: str) -> list[str]:
    """Return the tuning tables of the recipe before it whose names begin so."""
    return _complete_table(context, "tune", incomplete)


def _complete_table(context: typer.Context, kind: str, incomplete: str) -> list[str]:
    from florilegium.apps.runs.recipes import table_names
    from florilegium.common.errors import ConfigurationError

    with suppress(ConfigurationError, OSError, ValueError, TypeError):  # the command itself will name the mistake
        return [name for name in table_names(context.params["recipe"], kind) if name.startswith(incomplete)]
    return []


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs whose ids begin so, in the folder of ``--runs-dir`` or the default one, in alphabetical order."""
    from florilegium.strategies.settings.server import ServerSettings

    folder = Path(context.params.get("runs_dir") or ServerSettings.model_fields["runs_dir"].default).expanduser()
    names = (path.parent.name for path in folder.glob("*/config.toml"))
    return sorted(name for name in names if name.startswith(incomplete))


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def of_run(help: str) -> Any:
    """Return an argument that names a run or several; the shell completes it."""
    return typer.Argument(help=help, autocompletion=complete_run)


def of_recipe(help: str | None = None) -> Any:
    """Return an argument that names a recipe; the shell completes it."""
    return typer.Argument(help=help, autocompletion=complete_recipe)


RunName = Annotated[str, of_run("a run's id or folder")]
Recipe = Annotated[str | None, of_recipe()]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value; overrides recipe and defaults", autocompletion=complete_assignment),
]
Workers = Annotated[int, typer.Option(min=1, show_default="one per core")]
EngineOption = Annotated[str, typer.Option(autocompletion=complete_engine)]
Seeds = Annotated[
    str | None, typer.Option(metavar="SEEDS", help="one run per seed, such as 1-5 or 1,2,7 (default: key seed)")
]
ReportFolder = Annotated[Path | None, typer.Option(help="folder of the report (default: beside the runs)")]
Target = Annotated[Path, typer.Option("--output")]
MOST_SEEDS = 10_000
RunsDir = Annotated[Path | None, typer.Option(help="folder of runs (default: key runs-dir)")]


def runs_folder(runs_dir: Path | None) -> str:
    """Return the folder of runs: the option ``--runs-dir`` if given, otherwise the default of key ``runs-dir``."""
    from florilegium.apps.settings.configuration import defaults

    return str(runs_dir.absolute()) if runs_dir else str(defaults()["runs-dir"])


def run_path(run: str, runs_dir: Path | None) -> Path:
    """Return the folder of a run, by its id in the folder of runs, or by its own path."""
    from florilegium.strategies.folder.run_folder import find_run

    return find_run(run, runs_folder(runs_dir))


def options_of(runs_dir: Path | None) -> dict[str, bool | int | float | str]:
    """Return the keys that the option ``--runs-dir`` sets."""
    return {"runs-dir": str(runs_dir)} if runs_dir else {}


def runs_dir_of(assignments: Sequence[str] | None, runs_dir: Path | None) -> str:
    """Return the folder of runs: that of ``--runs-dir``, else that of ``--set runs-dir=…``, else the default."""
    from florilegium.apps.runs.experiment import read_assignments

    named = {} if runs_dir else read_assignments(assignments or [])
    return str(named.get("runs-dir", runs_folder(runs_dir)))


def means_of(engine: str, workers: int) -> Means:
    """Return by which means the command line carries out runs: shown on the terminal, in forked worker processes."""
    from florilegium.apps.engines.base import Means
    from florilegium.apps.engines.progress import on_terminal

    return Means(engine, workers, on_terminal(Console(stderr=True)), fork=True)


@contextmanager
def stoppable() -> Iterator[None]:
    """Context in which a run's words on being stopped become an error message."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(str(error) or "stopped") from error


def read_seeds(text: str) -> list[int]:
    """Parse seeds: numbers and ranges separated by commas, as in "1-5" or "1,2,10-12".

    Raises:
        ConfigurationError: if the text is something else, or has more than ``MOST_SEEDS`` seeds.
    """
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,20})(?:\s*-\s*(\d{1,20}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ConfigurationError(f"--seeds: '{text}' is not a list of seeds, such as 1-5 or 1,2,7")
        if len(seeds) + last - first >= MOST_SEEDS:
            raise ConfigurationError(f"--seeds: '{text}' is more than {MOST_SEEDS} seeds, each of them a whole run")
        seeds += range(first, last + 1)
    return seeds
