"""Runs on a cluster beside runs in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.cluster.runs import KEYS
from tests.grid import run_app
from tests.runs import timeless
from tests.support import config


def check_like_undisturbed(folder: Path, workers: int, **keys: Any) -> None:
    """Check that ``folder``/run has the results of a run of as many workers in this process."""
    run_app(config(**{**KEYS, **keys, "runs-dir": str(folder), "run-name": "twin"}), nodes=workers)
    for name, array in read_checkpoint(folder / "twin").arrays.items():
        np.testing.assert_array_equal(array, read_checkpoint(folder / "run").arrays[name])
    assert timeless(folder / "run") == timeless(folder / "twin")
    assert (folder / "run" / "clients.csv").read_bytes() == (folder / "twin" / "clients.csv").read_bytes()
