"""What programs for devices use of the inside of Flower, and with which versions of Flower they do."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from importlib import metadata

from flwr.clientapp import ClientApp

from florilegium.apps.origins.tested import TESTED

log = logging.getLogger("flwr")

_SERIES = [version.rpartition(".")[0] for version in TESTED["flwr"]]
"""Series of versions of Flower, such as 1.42, that ``florilegium device serve`` and ``superlink`` were tested with."""


def tested() -> bool:
    """Return whether the installed version of Flower is of a series that was tested."""
    return metadata.version("flwr").rpartition(".")[0] in _SERIES


def usable() -> bool:
    """Return whether resident processes work with the installed version of Flower, on this operating system."""
    return tested() and hasattr(os, "fork")


def hand_over(program: str, options: Sequence[str], needs: str, lacks: str) -> None:
    """Replace this process by a program of Flower's.

    Args:
        program: its name.
        options: its options.
        needs: what would take its place, and what that needs besides a version of Flower that was tested.
        lacks: what the program does otherwise; both are said in the log.
    """
    log.warning("%s Flower %s: `%s` is used instead, which %s", needs, " or ".join(_SERIES), program, lacks)
    os.execv(shutil.which(program) or program, [program, *options])


def installed_app(name: str, version: str, fab: bytes, digest: str) -> ClientApp:
    """Install an app as ``flower-supernode`` does, and import its ClientApp.

    Args:
        name: the app's id, ``publisher/name``.
        version: its version.
        fab: its bundle.
        digest: SHA-256 of the bundle, in hexadecimal digits.

    Raises:
        Exception: of several kinds, if the bundle or the code in it is broken.
    """
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.utils import get_load_client_app_fn

    install_from_fab(fab, skip_prompt=True)
    return get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)(name, version, digest)
