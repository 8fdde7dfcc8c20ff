"""A wait of Flower's that is too long for small messages, shortened."""

from __future__ import annotations

from functools import partial

from flwr.superlink.grid import http_grid

FIRST_RETRY = 0.05
"""Seconds after which an object that has not arrived at the SuperLink yet is asked for again; then twice as long."""


def shorten_waits() -> None:
    """Let this process ask again soon for parts of a reply that a device is still sending; Flower waits a second."""
    if hasattr(http_grid, "pull_objects"):  # not public, so that other versions of Flower may lack it
        http_grid.pull_objects = partial(http_grid.pull_objects, initial_backoff=FIRST_RETRY)
