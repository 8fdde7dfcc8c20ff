"""Commands that write what is run: packages with methods, networks and datasets, and the Flower app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from florilegium.apps.cli.groups import RUN, Group

writing = Group(RUN)


@writing.add("florilegium new method fed-mine")
def new(
    kind: Annotated[Literal["method", "network", "dataset"], typer.Argument(help="what the package provides")],
    name: Annotated[str, typer.Argument(help="its name in the configuration, such as fed-mine")],
    folder: Annotated[Path, typer.Option(help="where to write the package's folder")] = Path(),
) -> None:
    """Write a small package with a method, network or dataset of your own: code, a recipe, and a test that passes."""
    from florilegium.apps.cli.new_package import write_package

    path = write_package(kind, name, folder)
    print(f"{path}\ntry it: pip install -e {path}; python -m pytest {path}; florilegium run {path / 'recipe.toml'}")


@writing.add("florilegium app fl-app")
def app(folder: Annotated[Path, typer.Argument(help="a new folder")]) -> None:
    """Write the Flower app to a folder, for `flwr run FOLDER` without a checkout of Florilegium."""
    from florilegium.apps.origins.app_folder import write_app

    print(write_app(folder))
