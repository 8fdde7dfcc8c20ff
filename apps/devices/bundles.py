"""Bundles of apps, as Flower makes them of a folder."""

from __future__ import annotations

from pathlib import Path

from florilegium.common.errors import ConfigurationError


def bundle_of(app: Path) -> bytes:
    """Return the bundle of an app's folder, or the content of a bundle.

    Raises:
        ConfigurationError: if Flower cannot make one.
    """
    if not app.is_dir():
        try:
            return app.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{app} cannot be read ({error.strerror})") from error
    from flwr.cli.build import build_fab_from_disk

    try:
        return build_fab_from_disk(app)
    except ValueError as error:
        raise ConfigurationError(f"{app} is no Flower app: {error}") from error
