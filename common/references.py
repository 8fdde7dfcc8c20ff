"""References to code by name, ``"package.module:attribute"``, so that registries need not import it early."""

from __future__ import annotations

import importlib
from typing import Any

from florilegium.common.errors import ConfigurationError


def resolve(reference: str) -> Any:
    """Import a module and return its attribute.

    Raises:
        ConfigurationError: if there is no such module or attribute, or it is not written ``module:attribute``.
    """
    module, separator, attribute = reference.partition(":")
    if not separator or not module or not attribute:
        raise ConfigurationError(f"'{reference}' is no reference; expected 'package.module:attribute'")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise ConfigurationError(f"'{reference}': there is no module '{error.name}'") from error
    if not hasattr(found, attribute):
        raise ConfigurationError(f"'{reference}': module '{module}' has no '{attribute}'")
    return getattr(found, attribute)
