"""``python -m benchmarks.large 20 50 300``: memory of runs with so many million parameters, in multiples of the model.

FedAvg with dense layers, four clients with a few rows, a step each, two rounds that are evaluated and checkpointed. Two
workers of the engine ``process``; with ``--cluster`` a worker of Ray on each of two nodes in network namespaces, as
root; with ``--devices`` a SuperLink and two SuperNodes, as ``deploy/`` starts them, in the place of them, and two
clients. The same run of a small network is subtracted, so that what is left is the model's.

Memory is a process's share of its pages, so that what processes share counts once, without pages of files, which the
system takes back when it needs memory: these are listed by themselves, also as a share. Shared memory, which is Ray's
object stores, is a role of its own. The results are in docs/results/cluster.md. A line says the memory without
subtraction, since starting the run of the small network may need more for a moment than its rounds.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from torch import nn

from benchmarks import suite
from florilegium.apps.runs.experiment import read_assignments
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests import processes
from tests.cluster.nodes import in_namespaces
from tests.cluster.runs import running
from tests.processes import ROOT
from tests.site import site

WIDTHS = {"small": 1, "p20": 2560, "p50": 4096, "p300": 4096}
LAYERS = {"small": 1, "p20": 2, "p50": 2, "p300": 17}
"""Square layers, and how wide they are, of the networks with so many million parameters."""
INTERVAL = 0.02
PATIENCE = 3600
"""Seconds that a run on devices or nodes may take."""
SERVER, WORKER, SUPERLINK, PREPARING = "server", "worker", "SuperLink", "before it has workers"
DEVICE, CONNECTION, RAYLET, STORES = "device", "its connection", "raylet", "object stores"


def _dense(name: str, shape: tuple[int, ...], classes: int) -> nn.Sequential:
    width, inputs = WIDTHS[name], math.prod(shape)
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    blocks["first"] = nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU())
    for layer in range(LAYERS[name]):
        blocks[f"layer{layer}"] = nn.Sequential(nn.Linear(width, width), nn.ReLU())
    blocks["head"] = nn.Linear(width, classes)
    return nn.Sequential(blocks)


def small(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return a network of some thousand parameters."""
    return _dense("small", shape, classes)


def p20(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return a network of 21 million parameters, 84 MB, the largest layer of which has 38 %."""
    return _dense("p20", shape, classes)


def p50(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return a network of 46 million parameters."""
    return _dense("p50", shape, classes)


def p300(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Return a network of 298 million parameters, 1.2 GB, no layer of which has more than 6 %."""
    return _dense("p300", shape, classes)


@dataclass
class Peaks:
    """The peaks of a run, in bytes, of the largest process of each role.

    Attributes:
        memory, files: of memory, and of pages of files, by role.
        together: of the memory of all processes.
        size: of the model.
        seconds: of a round.
    """

    memory: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    together: int = 0
    size: int = 0
    seconds: float = 0.0

    def add(self, roles: Mapping[int, str]) -> None:
        """Look at processes, of which the ids and roles are given."""
        found = {process: _pages(process) for process in roles}
        shared = sum(pages["Pss_Shmem"] for pages in found.values())
        for process, pages in found.items():
            self._raise(roles[process], pages["Pss_Anon"], pages["Pss_File"])
        if shared:
            self._raise(STORES, shared, 0)
        self.together = max(self.together, shared + sum(pages["Pss_Anon"] for pages in found.values()))

    def _raise(self, role: str, memory: int, files: int) -> None:
        self.memory[role] = max(self.memory.get(role, 0), memory)
        self.files[role] = max(self.files.get(role, 0), files)


def _pages(process: int) -> dict[str, int]:
    lines = (Path("/proc") / str(process) / "smaps_rollup").read_text(encoding="ascii").splitlines()
    return {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}


@contextmanager
def _watching(roles: Callable[[], Mapping[int, str]]) -> Iterator[Peaks]:
    """Yield the peaks of the processes that ``roles`` returns, as long as the context lasts."""
    peaks, ended = Peaks(), threading.Event()

    def watch() -> None:
        while not ended.wait(INTERVAL):
            try:
                peaks.add(roles())
            except (OSError, KeyError, psutil.Error):  # a process has ended; the next look shows the others
                continue

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _keys(network: str, clients: int) -> dict[str, Value]:
    return {
        "dataset": "benchmarks.vectorised:pictures", "partitioner": "iid", "num-clients": clients,
        "samples-per-client": 8, "model": f"benchmarks.large:{network}", "cohort-size": clients, "rounds": 2,
        "local-steps": 1, "batch-size": 4, "evaluate-every": 1, "seed": 1,
    }  # fmt: skip


def in_workers(network: str, more: Mapping[str, Value]) -> Peaks:
    """Return the peaks of a run with two workers; those of the server before and after these are there."""
    with tempfile.TemporaryDirectory() as folder:
        process = suite.start_run({**_keys(network, 4), **more}, 2, Path(folder), engine="process")

        def roles() -> dict[int, str]:
            workers = [child.pid for child in psutil.Process(process.pid).children()]
            return {process.pid: SERVER, **dict.fromkeys(workers, WORKER)} if workers else {process.pid: PREPARING}

        with _watching(roles) as peaks:
            path = suite.finish_run(process)
        return _finished(peaks, path)


def on_nodes(network: str, more: Mapping[str, Value]) -> Peaks:
    """Return the peaks of a run on a Ray cluster of two nodes, with a worker on each."""
    keys: dict[str, Any] = {**_keys(network, 4), **more, "method": "fedavg"}
    with tempfile.TemporaryDirectory() as made, in_namespaces(Path(made), 2) as cluster:
        for node in range(2):
            cluster.start(node)
        with running(cluster, Path(made), 2, **keys) as run:

            def roles() -> dict[int, str]:
                found = {run.pid: SERVER}
                for name, role in (("ray::Worker", WORKER), ("raylet/raylet", RAYLET)):
                    found |= dict.fromkeys((one.pid for node in range(2) for one in cluster.family(node, name)), role)
                return found

            with _watching(roles) as peaks:
                if run.wait(PATIENCE):
                    raise RuntimeError((Path(made) / "run.out").read_text()[-2000:])
        return _finished(peaks, Path(made) / "run")


def on_devices(network: str, more: Mapping[str, Value]) -> Peaks:
    """Return the peaks of a run with two devices."""
    keys = _keys(network, 2)
    federation, dataset = federate(parse(complete(keys))[0])
    processes.DEADLINE = PATIENCE
    os.environ["PYTHONPATH"] = str(ROOT)  # where devices and server find this module
    own = {"partitioner", "samples-per-client"}  # which real devices have in their data
    with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as here:
        for client in range(2):
            write_device(federation, dataset, client, here.folder / "data" / str(client))
            here.start_node(str(client), here.folder / "data" / str(client))

        def roles() -> dict[int, str]:
            found: dict[int, str] = {}
            for node in here.nodes.values():
                found |= dict.fromkeys((one.pid for one in _family(node.pid)), DEVICE) | {node.pid: CONNECTION}
            for one in _family(here.superlink.pid):
                found[one.pid] = SERVER if "flwr-serverapp" in " ".join(one.cmdline()) else SUPERLINK
            return found

        with _watching(roles) as peaks:
            run = here.submit("measured", {name: key for name, key in keys.items() if name not in own} | {**more})
            here.wait(run, lambda status: status["state"] == "completed")
        return _finished(peaks, run)


def _family(process: int) -> list[psutil.Process]:
    root = psutil.Process(process)
    return [root, *root.children(recursive=True)]


def _finished(peaks: Peaks, run: Path) -> Peaks:
    checkpoint = read_checkpoint(run)
    peaks.size = sum(array.nbytes for array in checkpoint.arrays.values())
    peaks.seconds = statistics.median(checkpoint.facts["seconds"])
    return peaks


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parameters", nargs="+", type=int, choices=[20, 50, 300], help="in millions")
    parser.add_argument("--cluster", dest="measure", action="store_const", const=on_nodes, default=in_workers)
    parser.add_argument("--devices", dest="measure", action="store_const", const=on_devices)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further key")
    arguments = parser.parse_args()
    more = read_assignments(arguments.set)
    measure = arguments.measure
    nothing = measure("small", more)
    roles = [role for role in nothing.memory if role != RAYLET]
    print("| MB of the model | s a round |", *(f"{role} | its files |" for role in roles), "all |")
    print(f"|{(3 + 2 * len(roles)) * '---|'}")
    for millions in arguments.parameters:
        found = measure(f"p{millions}", more)
        cells = [f"{found.size / 1e6:.0f}", f"{found.seconds:.1f}"]
        for role in roles:
            for now, before in ((found.memory, nothing.memory), (found.files, nothing.files)):
                cells.append(f"{(now[role] - before[role]) / found.size:.2f}")
        print("|", " | ".join([*cells, f"{(found.together - nothing.together) / found.size:.2f}"]), "|", flush=True)
        whole = (f"{role} {found.memory[role] / 1e9:.2f} ({nothing.memory[role] / 1e9:.2f})" for role in roles)
        print("GB of memory at most, in brackets of the small network:", ", ".join(whole), flush=True)


if __name__ == "__main__":
    main()
