"""Accuracies that others have published for the methods of a recipe, from its tables ``[published.<source>]``."""

from __future__ import annotations

from florilegium.apps.runs.experiment import read_layers
from florilegium.common.errors import ConfigurationError


def published(recipe: str) -> dict[str, dict[str, str]]:
    """Return the published accuracies in per cent as written, such as "80.41 ± 0.08", by source and method.

    Raises:
        ConfigurationError: if a value is neither a number nor a text.
    """
    found: dict[str, dict[str, str]] = {}
    for source, table in read_layers(recipe).published.items():
        for method, value in table.items():
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ConfigurationError(
                    f"recipe '{recipe}', [published.{source}]: {method} must be a number or a text such as "
                    f"'80.41 ± 0.08' (found: {value!r})"
                )
            found.setdefault(source, {})[method] = str(value)
    return found
