"""Flower's SuperLink, with a database that waits longer for a lock."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

from flwr.supercore import sql_mixin
from flwr.superlink.cli import flower_superlink

WAITS = 120_000
"""Milliseconds that a statement waits. Flower's five seconds are over while large models are stored or deleted, and
then its SuperExec ends at the first request that fails, and with it the run."""


def serve(options: Sequence[str]) -> None:
    """Run a SuperLink in this process until it is stopped.

    Args:
        options: those of ``flower-superlink``; wrong ones end the process with its message.
    """
    module: Any = sql_mixin
    module.SQLITE_PRAGMAS = (*module.SQLITE_PRAGMAS, ("busy_timeout", str(WAITS)))  # the last one counts
    sys.argv = ["flower-superlink", *options]
    gc.enable()  # the command line has switched it off for the imports
    flower_superlink()
