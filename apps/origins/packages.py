"""Code of other packages that a run uses: references to it, the packages' versions, and the folders it lies in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from florilegium.apps.methods.registry import METHODS
from florilegium.apps.trackers.registry import TRACKERS
from florilegium.clients.core.batch_orders import BATCH_ORDERS
from florilegium.common.model_folders import named_folder
from florilegium.common.plugins import Registry
from florilegium.common.references import PATH_VARIABLE
from florilegium.common.settings import Value, folder
from florilegium.common.text import listed
from florilegium.models.networks import NETWORKS
from florilegium.models.zoo import of_zoo
from florilegium.partitions.datasets import DATASETS
from florilegium.partitions.registry import PARTITIONERS
from florilegium.partitions.sources.schema import FILE, read_schema
from florilegium.tasks.measured import LOSSES, METRICS
from florilegium.tasks.registry import TASKS

KINDS: Mapping[str, Registry[Any]] = {
    "method": METHODS, "model": NETWORKS, "task": TASKS, "partitioner": PARTITIONERS, "dataset": DATASETS,
    "loss": LOSSES, "metrics": METRICS, "batch-order": BATCH_ORDERS,
}  # fmt: skip
"""Configuration keys whose values may name code of other packages."""
NOT_INSTALLED = "(not installed)"
NOTEBOOK = "__main__"
"""Module of what is typed into a notebook or interpreter, or defined in a script; no other process can import it."""


def used_code(config: Mapping[str, Value]) -> tuple[str, ...]:
    """Return references to the code that the method and other names in ``config`` stand for, where it is not ours."""
    named = {key: str(config.get(key, "")) for key in KINDS}
    named["task"] = named["task"] or _task_of(named["dataset"])
    if of_zoo(named["model"]) or named_folder(named["model"]):
        named.pop("model")  # torchvision, timm and transformers may differ in version, as PyTorch may
    if "/" in named["dataset"]:
        named.pop("dataset")  # a folder, or a dataset of the hub
    found = [KINDS[key].reference(name) for key, names in named.items() for name in listed(names)]
    method = str(config.get("method", ""))
    if not METHODS.problem(method):
        found += METHODS[method].references
    return tuple(sorted({one for one in found if one and not one.startswith("florilegium.")}))


def _task_of(dataset: str) -> str:
    """Return the task that the schema in a dataset's folder names; "" if none does."""
    path = folder(dataset) if "/" in dataset else None
    return read_schema(path).task if path is not None and (path / FILE).is_file() and path.is_absolute() else ""


def modules(config: Mapping[str, Value]) -> list[str]:
    """Return the top-level modules outside this package that a run needs."""
    return sorted({reference.partition(":")[0].partition(".")[0] for reference in used_code(config)})


def version_of(module: str) -> str:
    """Return a top-level module's package and version, such as "my-package 0.1", or that it is not installed."""
    if (names := metadata.packages_distributions().get(module)) and names[0]:
        return f"{names[0]} {metadata.version(names[0])}"
    return f"{module} (no package)" if _origin(module) is not None else f"{module} {NOT_INSTALLED}"


def versions(config: Mapping[str, Value]) -> list[str]:
    """Return :func:`version_of` each module outside this package that a run needs, and names that are unknown here."""
    named = {key: str(config[key]) for key in KINDS if config.get(key)}
    each = [(key, name) for key, names in named.items() for name in listed(names)]
    unknown = [name for key, name in each if not (set("/:") & set(name) or name in [*KINDS[key]])]
    return [version_of(module) for module in modules(config)] + [f"{name} {NOT_INSTALLED}" for name in unknown]


def import_path(config: Mapping[str, Value]) -> str:
    """Return the folders from which other processes can import what this process imports for a run.

    It is a value for the environment variable ``FLORILEGIUM_PATH``; folders of installed packages are not needed.
    """
    folders = [os.environ[PATH_VARIABLE]] if os.environ.get(PATH_VARIABLE) else []
    tracker = TRACKERS.reference(str(config.get("tracker", "")))  # no part of what a run is made from
    for module in [*modules(config), *([tracker.partition(":")[0].partition(".")[0]] if tracker else [])]:
        origin = _origin(module)
        if origin is not None and not metadata.packages_distributions().get(module):
            folders.append(str(origin))
    return os.pathsep.join(dict.fromkeys(folders))


def _origin(module: str) -> Path | None:
    """Return the folder that a top-level module is imported from; None if there is none."""
    try:
        spec = None if module == NOTEBOOK else find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).absolute().parent
    return Path(spec.origin).absolute().parent if spec.origin else None


def in_notebook(config: Mapping[str, Value]) -> list[str]:
    """Return the references of a run to what is defined in a notebook or script, which only this process knows."""
    return [reference for reference in used_code(config) if reference.startswith(f"{NOTEBOOK}:")]
