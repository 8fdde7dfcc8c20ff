"""References to code by name, ``"package.module:attribute"``, so that registries import it only when used."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from florilegium.common.errors import ConfigurationError, nearest

PATH_VARIABLE = "FLORILEGIUM_PATH"
"""Environment variable: folders with modules of your own, searched after all installed packages.

``PYTHONPATH`` would be searched first, so that a folder ``datasets`` of yours would hide a package of that name.
"""


def add_folder(folder: Path) -> None:
    """Let this process, and those that it starts, import modules from ``folder``, after all installed packages."""
    before = os.environ.get(PATH_VARIABLE)
    os.environ[PATH_VARIABLE] = os.pathsep.join(filter(None, [before, str(folder)]))
    sys.path.append(str(folder))


def resolve(reference: str) -> Any:
    """Import the object that ``reference``, written ``package.module:attribute``, names and return it.

    Raises:
        ConfigurationError: if there is no such module or attribute, or the reference is written differently.
    """
    module, separator, attribute = reference.partition(":")
    if not separator or not module or not attribute:
        raise ConfigurationError(f"'{reference}' is no reference; expected 'package.module:attribute'")
    sys.path += [
        folder for folder in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if folder not in ("", *sys.path)
    ]
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports is missing
        raise ConfigurationError(f"'{reference}': there is no module '{error.name}'") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            if module == "__main__":
                raise ConfigurationError(
                    f"'{reference}': it was defined in a notebook or script, and is not defined in this process; "
                    "define it here too, or save it in a module of its own"
                )
            raise ConfigurationError(f"'{reference}': {_described(found)} has no '{name}'{nearest(name, dir(found))}")
        found = getattr(found, name)
    return found


def imported(part: Any) -> Any:
    """Return what ``part`` is, or names if it is a reference (:func:`resolve`)."""
    return resolve(part) if isinstance(part, str) else part


def _described(found: Any) -> str:
    return f"module '{found.__name__}'" if isinstance(found, ModuleType) else f"'{found.__qualname__}'"


def name_of(thing: Any) -> str:
    """Return the reference ``package.module:attribute`` of a class or function.

    Raises:
        ConfigurationError: if it cannot be imported by that name, such as a function inside a function.
    """
    reference = f"{thing.__module__}:{thing.__qualname__}"
    if "<" in reference:
        raise ConfigurationError(
            f"'{reference}' has no name that can be imported; define it at the top level of a module or notebook"
        )
    return reference
