"""What carries a run out: command, engine, machine and versions, which the run's folder keeps in ``provenance.json``.

Hashes of what the run is made from, its data and their division, are in ``origins.json``. Neither has the names of the
user and the host; in a command, the user's home folder is written as ``~``.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from florilegium.apps.origins.code import code_version
from florilegium.apps.origins.package import commit, project
from florilegium.common.settings import folder
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.attempts import read_provenance

if TYPE_CHECKING:
    import torch

    from florilegium.apps.settings.configuration import Settings

COMMAND_VARIABLE = "FLORILEGIUM_COMMAND"
"""Environment variable by which ``--engine ray`` tells Flower's processes what only the command knows, as JSON."""
DATA = "data"
"""Name of the hash of simulated clients' data, which changes with their source files."""
_DIRTY = "-dirty"


def provenance_of(
    settings: Settings, device: torch.device, nodes: int, *, deployed: bool, engine: str
) -> dict[str, Any]:
    """Return what carries a run out, as JSON values.

    Args:
        settings: the run's configuration.
        device: the torch device of this process.
        nodes: number of nodes: worker processes, or real devices.
        deployed: whether the nodes are real devices; their machines are not described.
        engine: what carries it out: "process", "ray", or "flower" for one of Flower's processes, not the user's own.

    Returns:
        "command", "engine" ("process", "ray", "flower" for a plain ``flwr run``, "devices"), "workers" (the nodes),
        "versions", "machine" and, of simulated clients, the hash of their "data" (:func:`same_data`).
    """
    told = json.loads(os.environ.get(COMMAND_VARIABLE) or "{}") if engine == "flower" else _known_here()
    engine = "devices" if deployed else "ray" if engine == "flower" and told else engine
    packages = ["flwr", "torch", "numpy"] + ["ray"] * (engine in ("ray", "flower"))
    packages += ["opacus"] * (settings.privacy.unit == "example")
    return {
        "command": told.get("command", ["flwr", "run"]),
        "engine": engine,
        "workers": nodes,
        "versions": _own_version(told.get("commit", "")) | {name: metadata.version(name) for name in packages},
        **({} if deployed else {DATA: federate(settings)[1].fingerprint}),
        "machine": machine() | ({"gpus": _gpus(device, every=engine == "ray")} if device.type == "cuda" else {}),
    }


def same_data(settings: Settings, run: str) -> bool:
    """Return whether this process reads the data with which the present attempt at a run began.

    Files may change before a worker process first reads them. Where the run's folder is not, as on another machine of a
    cluster, that is not known, and they count as the same.
    """
    attempts = read_provenance(folder(settings.runs_dir) / run)
    began = attempts[-1].get(DATA) if attempts else None
    return began in (None, federate(settings)[1].fingerprint)


def passed_on() -> str:
    """Return the value of ``COMMAND_VARIABLE`` for processes that this one starts."""
    return json.dumps(_known_here())


def command() -> list[str]:
    """Return the user's command: that of the command line with its arguments, a script's name, or "notebook"."""
    program = Path(sys.argv[0])
    if program.stem == "florilegium":
        return ["florilegium", *map(_without_home, sys.argv[1:])]
    if program.name == "__main__.py":
        own = map(_without_home, sys.argv[1:]) if program.parent.name == "florilegium" else ()
        return ["python", "-m", program.parent.name, *own]
    if "ipykernel" in sys.modules:
        return ["notebook"]
    return ["python", *([program.name] if program.suffix else [])]  # without a script: "", "-c"


def _without_home(word: str) -> str:
    """Return a word of a command with ``~`` for the user's home folder, also in ``key=/home/name/folder``."""
    home = Path.home()
    if home == home.parent:
        return word  # it is the root folder, of which every path is a part
    return re.sub(rf"(?<![\w./~-]){re.escape(str(home))}(?![\w.-])", "~", word)


def _known_here() -> dict[str, Any]:
    return {"command": command(), "commit": commit()}


def _own_version(known: str) -> dict[str, Any]:
    """Return the versions of Python and of this package; ``known`` is its commit, as :func:`commit` returns it."""
    return {
        "python": platform.python_version(),
        "florilegium": project()["version"],
        "commit": known.removesuffix(_DIRTY),
        "modified": known.endswith(_DIRTY),
        "code": code_version(),
    }


@lru_cache(maxsize=1)
def machine() -> dict[str, Any]:
    """Return processor, physical cores, available threads, memory (GB = 10⁹ bytes) and operating system."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": available,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }


def _processor() -> str:
    """Return the processor's model; Linux alone names it in a file, elsewhere this is its architecture."""
    file = Path("/proc/cpuinfo")
    if file.exists():
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


_DRIVER = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver describes the GPUs of a Linux machine, a folder each."""


def _gpus(device: torch.device, *, every: bool) -> list[str]:
    """Return the names of the GPU ``device``, or of every GPU that this process may use.

    PyTorch would start CUDA in this process to learn them, and no worker that uses a GPU could be forked any more. So
    it is asked only if the driver does not name a single model.
    """
    from torch import cuda

    described = [file.read_text(encoding="utf-8") for file in _DRIVER.glob("*/information")]
    models = {line.removeprefix("Model:").strip() for text in described for line in text.splitlines()[:1]}
    if len(models) == 1:
        return [*models] * (cuda.device_count() if every else 1)
    return [cuda.get_device_name(i) for i in range(cuda.device_count())] if every else [cuda.get_device_name(device)]


# ------------------------------------------------------------------------------------------ comparison


def by_other_code(path: Path) -> bool:
    """Return whether another state of this package's code than the present one made the run in ``path``, or a part.

    Raises:
        RunError: if ``provenance.json`` is damaged.
    """
    return {part.get("versions", {}).get("code") for part in read_provenance(path)} != {code_version()}


_FIGURES = {
    "engine": "engine",
    "workers": "number of workers",
    "versions.code": "code of florilegium",
    "versions.torch": "torch",
    "versions.numpy": "numpy",
    "versions.flwr": "flwr",
    "versions.opacus": "opacus",
    "machine.processor": "processor (also for seconds)",
    "machine.gpus": "GPU (also for seconds)",
    "machine.threads": "available threads (for seconds)",
    "versions.python": "Python (for seconds)",
}
"""What may matter for figures or seconds, in words."""


def differences(*paths: Path) -> list[str]:
    """Return in words what the provenance of runs differs in that may matter for their figures or seconds.

    Args:
        paths: the folders of the runs.

    Returns:
        A line for each difference; also one for runs of an earlier version, whose provenance is unknown, if there are
        others. [] if there is nothing to say.

    Raises:
        RunError: if a file is damaged.
    """
    parts = {path.name: read_provenance(path) for path in paths}
    known = {name: own for name, own in parts.items() if own}
    unknown = [name for name in parts if name not in known]
    found = [f"unknown for {_few(unknown)}, which an earlier version carried out"] if unknown and known else []
    for key, words in _FIGURES.items():
        values: dict[str, list[str]] = {}
        for name, own in known.items():
            values.setdefault(" then ".join(dict.fromkeys(_value(part, key) for part in own)), []).append(name)
        if len(values) > 1:
            found.append(f"{words}: {'; '.join(f'{value} in {_few(names)}' for value, names in values.items())}")
    return found


def _few(names: Sequence[str]) -> str:
    """Return names as a list; of more than three, the first ones and the number of the others."""
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _value(part: Mapping[str, Any], key: str) -> str:
    """Return an entry of a part in words; the code with its commit."""
    table, _, name = key.rpartition(".")
    entries = part.get(table, {}) if table else part
    value = entries.get(name, "none")
    if key == "versions.code":
        modified = ", modified" if entries.get("modified") else ""
        known = f" (commit {entries['commit']}{modified})" if entries.get("commit") else ""
        return f"{entries.get('florilegium', '')} {value}{known}"
    return ", ".join(value) if isinstance(value, list) else str(value)
