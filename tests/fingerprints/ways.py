"""The ways in which a run is carried out; each returns its fingerprint."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from flwr.app import Message

from tests.fingerprints import DEVICES, NOISE, SECURE, TOP_K, Keys
from tests.fingerprints.hashing import fingerprint, messages
from tests.fingerprints.package import (
    Simulation,
    defaults,
    federate,
    run_experiment,
    run_here,
    silent,
    write_device,
)
from tests.fingerprints.randomness import seeded
from tests.grid import run_app
from tests.site import site
from tests.support import config, settings

Found = dict[str, Any]
Nodes = int | list[dict[str, Any]]
HALF = "broken"
"""Name of the runs that are interrupted and resumed."""
REAL: Mapping[str, Keys] = {
    "fedavg, top-k": TOP_K | {"method": "fedavg"},
    "ditto": {"method": "ditto", "finetune-epochs": 1},
    "fedavg, secure": SECURE | {"method": "fedavg", "secure-colluding": 0.0},
}
"""Runs with a SuperLink and two SuperNodes."""


def in_process(name: str, keys: Keys, folder: Path) -> Found:
    """Return the fingerprints of the runs that take no further machinery: the way of each by its name."""
    nodes = _nodes(name, keys, folder)
    with seeded():
        grid = run_app(_config(keys, folder, **{"run-name": "grid"}), nodes=nodes)
    found = {"grid": fingerprint(folder / "grid") | {"messages": messages(grid.sent, grid.received)}}
    if interrupted(name, keys, folder):
        found["resumed"] = resumed(name, keys, folder)
    if name in DEVICES:
        return found
    with seeded():
        run_here(_config(keys, folder, **{"run-name": "here"}), folder / "here")
    found["here"] = fingerprint(folder / "here")
    if NOISE not in keys:
        run_here(_config(keys, folder, **{"run-name": "workers"}), folder / "workers", workers=2, fork=True)
        found["workers"] = fingerprint(folder / "workers")
    return found


def interrupted(name: str, keys: Keys, folder: Path) -> bool:
    """Interrupt a run in its second half, with a checkpoint after every round; return whether it came to that."""

    def stop(message: Message) -> None:
        if message.metadata.message_type == "train":
            asked = cast(dict[str, Any], message.content["config"])
            if asked["round"] > int(keys["rounds"]) // 2 > 0:
                raise KeyboardInterrupt

    run = _config(keys, folder, **{"run-name": HALF, "checkpoint-every": 1})
    try:
        with seeded():
            run_app(run, _nodes(name, keys, folder), intercept=stop)
    except KeyboardInterrupt:
        return True
    shutil.rmtree(folder / HALF)
    return False


def resumed(name: str, keys: Keys, folder: Path) -> Found:
    """Resume the run that :func:`interrupted` has left in ``folder``; return its fingerprint."""
    with seeded():
        run_app(_config(keys, folder, resume=HALF), _nodes(name, keys, folder))
    return fingerprint(folder / HALF)


def _config(keys: Keys, folder: Path, **more: Any) -> Keys:
    return config(**{**keys, "runs-dir": str(folder), **more})


def _nodes(name: str, keys: Keys, folder: Path) -> Nodes:
    """Return the nodes of an in-process run; devices get their data and their state in ``folder``."""
    if name not in DEVICES:
        return 2
    _write_devices(keys, folder)
    return [
        {"client-id": str(i), "data-path": str(folder / "data" / str(i)), "state-dir": str(folder / "state")}
        for i in range(int(keys["num-clients"]))
    ]


def _write_devices(keys: Keys, folder: Path) -> None:
    federation, dataset = federate(settings(**keys))
    for client in range(int(keys["num-clients"])):
        if not (path := folder / "data" / str(client)).exists():
            write_device(federation, dataset, client, path)


def simulated(wanted: Mapping[str, Keys], folder: Path) -> Found:
    """Return the fingerprints of those of the wanted runs that can be simulated without a seed, in Ray, two workers."""
    found: Found = {}
    fit = {name: keys for name, keys in wanted.items() if name not in DEVICES and NOISE not in keys}
    with Simulation(2) as simulation:
        for number, (name, keys) in enumerate(fit.items()):
            differing = {k: v for k, v in config(**keys).items() if v != defaults()[k]}
            changed = {**differing, "runs-dir": str(folder), "run-name": f"simulated-{number}"}
            found[name] = {"simulation": fingerprint(run_experiment(simulation, changed, silent))}
    return found


def real(common: Keys, folder: Path) -> Found:
    """Return the fingerprints of the runs with two SuperNodes."""
    common = {**common, "num-clients": 2, "participation": 1.0, "model": "linear", "rounds": 2, "start-timeout": 600.0}
    with site(folder) as here:
        _write_devices(common, folder)
        for client in ("0", "1"):
            here.start_node(client, folder / "data" / client)
        return {
            f"SuperNodes, {name}": {"real": fingerprint(here.run(f"run-{number}", **{**common, **keys}))}
            for number, (name, keys) in enumerate(REAL.items())
        }
