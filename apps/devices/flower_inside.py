"""What resident processes use of the inside of Flower, and with which versions of Flower they do."""

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
"""Series of versions of Flower, such as 1.42, that ``florilegium device serve`` was tested with."""


def usable() -> bool:
    """Return whether resident processes work with the installed version of Flower, on this operating system."""
    return metadata.version("flwr").rpartition(".")[0] in _SERIES and hasattr(os, "fork")


def hand_over(options: Sequence[str]) -> None:
    """Replace this process by ``flower-supernode`` with the given options, and say why."""
    log.warning(
        "resident processes need a system that can fork, and Flower %s: `flower-supernode` is used instead, which "
        "starts a process for every message", " or ".join(_SERIES),
    )  # fmt: skip
    os.execv(shutil.which("flower-supernode") or "flower-supernode", ["flower-supernode", *options])


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
