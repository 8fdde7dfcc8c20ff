"""Words that the shell completes. It waits for them, so that little is imported here, and never PyTorch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import typer


def complete_method(incomplete: str) -> list[str]:
    """Return the methods whose names begin so."""
    from florilegium.apps.methods.registry import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """Return the datasets whose names begin so."""
    from florilegium.partitions.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


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


def complete_tracker(incomplete: str) -> list[str]:
    """Return the trackers whose names begin so."""
    from florilegium.apps.trackers.registry import TRACKERS

    return [name for name in TRACKERS if name.startswith(incomplete)]


def complete_engine(incomplete: str) -> list[str]:
    """Return the engines whose names begin so."""
    from florilegium.apps.engines.registry import AUTO, ENGINES

    return [name for name in (AUTO, *ENGINES) if name.startswith(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs whose ids begin so, in the folder of ``--runs-dir`` or the default one, in alphabetical order."""
    from florilegium.strategies.settings.server import ServerSettings

    folder = Path(context.params.get("runs_dir") or ServerSettings.model_fields["runs_dir"].default).expanduser()
    names = (path.parent.name for path in folder.glob("*/config.toml"))
    return sorted(name for name in names if name.startswith(incomplete))
