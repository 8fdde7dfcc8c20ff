"""References to code by name, ``"package.module:attribute"``, so that registries import it only when used."""

from __future__ import annotations

import importlib
from typing import Any

from florilegium.common.errors import ConfigurationError


def resolve(reference: str) -> Any:
    """Import the object that ``reference``, written ``package.module:attribute``, names and return it.

    Raises:
        ConfigurationError: if there is no such module or attribute, or the reference is written differently.
    """
    module, separator, attribute = reference.partition(":")
    if not separator or not module or not attribute:
        raise ConfigurationError(f"'{reference}' is no reference; expected 'package.module:attribute'")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but something that it imports is missing
        raise ConfigurationError(f"'{reference}': there is no module '{error.name}'") from error
    if not hasattr(found, attribute):
        raise ConfigurationError(f"'{reference}': module '{module}' has no '{attribute}'")
    return getattr(found, attribute)


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
