"""Where recipes lie, and what each reproduces; imports little."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from florilegium.apps.origins.code import layer_folder
from florilegium.common.errors import ConfigurationError
from florilegium.common.places import read_utf8

RECIPES = layer_folder("apps") / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the suite."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def find_recipe(name: str, beside: Path = Path()) -> Path:
    """Return the file of a recipe.

    Args:
        name: a recipe's name or path.
        beside: folder that is searched before the recipes that come with the suite.

    Raises:
        ConfigurationError: if there is no such recipe; the message suggests the closest name.
    """
    candidates = [beside / name, beside / f"{name}.toml", RECIPES / name, RECIPES / f"{name}.toml"]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        known = recipe_names()
        raise ConfigurationError(f"there is no recipe '{name}'{_near(name, known)} `florilegium recipes` lists all.")
    return path.resolve()


def _near(name: str, known: Sequence[str]) -> str:
    """Return ``"; did you mean 'x' or 'y'?"`` with the three recipes nearest to a name, or ``"."`` if none is near."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else "."


def introduction(path: Path) -> list[str]:
    """Return the comment at the beginning of a recipe's file, line by line; the first says what it reproduces."""
    return list(takewhile(lambda line: line.startswith("#"), read_utf8(path).splitlines()))


def table_names(name: str, kind: str) -> list[str]:
    """Return the names of a recipe's tables of a kind, such as "sweeps", also of those in recipes that it extends.

    Nothing else of the recipes is read or checked (:func:`florilegium.apps.runs.experiment.read_layers`).

    Raises:
        ConfigurationError: if there is no such recipe.
        ValueError: if a recipe is not valid TOML.
    """
    found: list[str] = []
    beside, read = Path(), set[Path]()
    while name:
        path = find_recipe(name, beside)
        if path in read:
            break
        content = tomllib.loads(read_utf8(path))
        found += content.get(kind, {})
        read.add(path)
        name, beside = content.get("extends", ""), path.parent
    return sorted({*found})
