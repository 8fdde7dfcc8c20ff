"""What several test files need: settings whose files stay in a temporary folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

from apps.settings import Settings, defaults, parse
from common.settings import Value
from partitions.datasets import DATASETS

_FOLDER = tempfile.TemporaryDirectory(prefix="florilegium-tests-")  # removed when the session ends
CACHE = Path(_FOLDER.name) / "cache"
RUNS = Path(_FOLDER.name) / "runs"


def config(**overrides: Value) -> dict[str, Value]:
    """Return the complete, flat run configuration: the defaults, with ``overrides`` and temporary folders.

    ``num_clients=3`` sets the key ``num-clients``; a method's own keys are given as ``**{"fedprox.mu": 0.1}``.
    Text gets a network for text.
    """
    folders = {"cache-dir": str(CACHE), "runs-dir": str(RUNS)}
    keys = {key.replace("_", "-"): value for key, value in overrides.items()}
    if DATASETS.get(str(keys.get("dataset")), DATASETS["digits"]).kind == "characters":
        keys = {"model": "char-lstm", **keys}
    return {**defaults(), **folders, **keys}


def settings(**overrides: Value) -> Settings:
    """Return the checked settings of :func:`config`."""
    return parse(config(**overrides))[0]
