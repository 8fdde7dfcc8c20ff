"""Whether two runs have the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.cluster.runs import KEYS
from tests.grid import run_app
from tests.runs import timeless
from tests.support import config


def check_like_undisturbed(folder: Path, workers: int, **keys: Any) -> None:
    """Check that ``folder``/run has the results of a run of as many workers in this process."""
    run_app(config(**{**KEYS, **keys, "runs-dir": str(folder), "run-name": "twin"}), nodes=workers)
    assert differences(folder / "twin", folder / "run") == []


def differences(one: Path, other: Path) -> list[str]:
    """Return in what two runs differ."""
    first, second = read_checkpoint(one).arrays, read_checkpoint(other).arrays
    found = [name for name in first.keys() | second.keys() if not np.array_equal(first[name], second[name])]
    found += ["metrics.jsonl"] if timeless(one) != timeless(other) else []
    found += ["clients.csv"] if (one / "clients.csv").read_bytes() != (other / "clients.csv").read_bytes() else []
    states, others = _states(one), _states(other)
    for state in states.keys() | others.keys():
        own, theirs = states.get(state, {}), others.get(state, {})
        if own.keys() != theirs.keys() or any(not np.array_equal(own[name], theirs[name]) for name in own):
            found.append(f"state {state}")
    return found


def _states(run: Path) -> dict[str, dict[str, Any]]:
    """Return the newest version of each part of each client's state, by its path without round, attempt and run."""
    paths = sorted((run / "clients").rglob("*.safetensors"))  # rounds have leading zeros
    return {f"{path.parent.name}/{path.stem.rsplit('-', 3)[0]}": load_file(path) for path in paths}
