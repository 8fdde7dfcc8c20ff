"""``florilegium new``: write a package with a method, a network or a dataset of one's own."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from florilegium.apps.cli.groups import RUN, Group
from florilegium.apps.origins.code import layer_folder
from florilegium.apps.origins.package import project
from florilegium.common.errors import ConfigurationError

writing = Group(RUN)
Kind = Literal["method", "network", "dataset"]
KEYS = {"method": "method", "network": "model", "dataset": "dataset"}
"""The configuration key that names what a package provides."""
SUFFIX = ".template"
NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"


@writing.add("florilegium new method fed-mine")
def new(
    kind: Annotated[Kind, typer.Argument(help="what the package provides")],
    name: Annotated[str, typer.Argument(help="its name in the configuration, such as fed-mine")],
    folder: Annotated[Path, typer.Option(help="where to write the package's folder")] = Path(),
) -> None:
    """Write a small package with a method, network or dataset of your own: code, a recipe, and a test that passes."""
    path = write_package(kind, name, folder)
    print(f"{path}\ntry it: pip install -e {path}; python -m pytest {path}; florilegium run {path / 'recipe.toml'}")


def write_package(kind: Kind, name: str, folder: Path) -> Path:
    """Write the package to ``folder``/``name`` and return it.

    Args:
        kind: what it provides.
        name: its name in the configuration, such as "fed-mine"; its module is ``fed_mine``.
        folder: where to write it.

    Raises:
        ConfigurationError: if the name is not suitable or taken, or the folder exists.
    """
    from florilegium.apps.origins.packages import KINDS  # takes a while

    if not re.fullmatch(NAME, name):
        raise ConfigurationError(f"'{name}' is no name for a package: lower-case words joined by '-', such as fed-mine")
    if name in KINDS[KEYS[kind]]:
        raise ConfigurationError(f"there is already a {kind} '{name}'; choose another name")
    target = folder / name
    if target.exists():
        raise ConfigurationError(f"{target} exists already; choose another name or folder")
    words = {
        "name": name,
        "module": name.replace("-", "_"),
        "Class": "".join(word.capitalize() for word in name.split("-")),
        "constant": name.replace("-", "_").upper(),
        "version": str(project()["version"]),
    }
    templates = layer_folder("apps") / "templates"
    for root in (templates / "package", templates / kind):
        for template in sorted(root.rglob(f"*{SUFFIX}")):
            path = target / template.relative_to(root).as_posix().replace("module", words["module"], 1)
            path = path.with_name(path.name.removesuffix(SUFFIX))
            path.parent.mkdir(parents=True, exist_ok=True)
            text = Template(template.read_text(encoding="utf-8")).substitute(words, kind=kind, group=f"{kind}s")
            path.write_text(text, encoding="utf-8")
    return target
