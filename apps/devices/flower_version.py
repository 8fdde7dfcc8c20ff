"""Whether the inside of Flower is known that ``florilegium device serve`` uses; if not, ``flower-supernode`` runs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from importlib import metadata

log = logging.getLogger("flwr")

TESTED = ("1.42",)
"""Versions of Flower that ``apps/devices/superlink.py`` and ``apps/devices/resident.py`` were tested with."""


def usable() -> bool:
    """Return whether they work with the installed version of Flower, on this operating system."""
    return metadata.version("flwr").rpartition(".")[0] in TESTED and hasattr(os, "fork")


def hand_over(options: Sequence[str]) -> None:
    """Replace this process by ``flower-supernode`` with the given options, and say why."""
    log.warning(
        "resident processes need a system that can fork, and Flower %s: `flower-supernode` is used instead, which "
        "starts a process for every message", " or ".join(TESTED),
    )  # fmt: skip
    os.execv(shutil.which("flower-supernode") or "flower-supernode", ["flower-supernode", *options])
