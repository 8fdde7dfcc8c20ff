"""Words that the shell completes. It waits for them, so that little is imported here, and never PyTorch."""

from __future__ import annotations

from pathlib import Path

import typer


def complete_method(incomplete: str) -> list[str]:
    """Return the methods whose names begin so."""
    from florilegium.apps.methods import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """Return the datasets whose names begin so."""
    from florilegium.partitions.datasets import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes whose names begin so."""
    from florilegium.apps.recipe_list import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs whose ids begin so, in the folder of ``--runs-dir`` or the default one, in alphabetical order."""
    from florilegium.strategies.core.settings import ServerSettings

    folder = Path(context.params.get("runs_dir") or ServerSettings.model_fields["runs_dir"].default).expanduser()
    names = (path.parent.name for path in folder.glob("*/config.toml"))
    return sorted(name for name in names if name.startswith(incomplete))
