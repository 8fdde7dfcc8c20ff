"""What is used of the inside of Flower, whose versions differ in it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from functools import partial
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


FIRST_RETRY = 0.05
"""Seconds after which an object that has not arrived at the SuperLink yet is asked for again; then twice as long."""


def shorten_waits() -> None:
    """Let this process ask again soon for parts of a reply that a device is still sending; Flower waits a second."""
    from flwr.superlink.grid import http_grid  # only where messages are sent

    if hasattr(http_grid, "pull_objects"):  # not public, so that other versions of Flower may lack it
        http_grid.pull_objects = partial(http_grid.pull_objects, initial_backoff=FIRST_RETRY)
