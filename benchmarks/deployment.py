"""``python -m benchmarks.deployment``: what an exchange with devices costs, beside one in a simulation.

It starts a SuperLink with TLS and two authenticated SuperNodes on this machine: first ``florilegium device serve``, as
``deploy/`` does, then ``flower-supernode``, which starts a process for every message; and then carries out the same run
as a simulation. The results are in docs/results/deployment.md. The machine must be otherwise idle.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import suite
from benchmarks.task import KEYS
from florilegium.apps.settings.configuration import complete, parse
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.site import Site, site

DEVICES, ROUNDS, WARM = 2, 8, 2
RUN: dict[str, Value] = {"num-clients": DEVICES, "participation": 1.0, "rounds": ROUNDS, "evaluate-every": 0}
TASKS: Mapping[str, dict[str, Value]] = {
    "digits, mlp": {"dataset": "digits", "model": "mlp", "batch-size": 16, "local-epochs": 1},
    "CIFAR-10, LeNet": {**KEYS, "model": "lenet", "cohort-size": 0},
}
OWN_DATA = ("partitioner", "classes-per-client", "samples-per-client")
"""Keys that do not apply on real devices, which have their own data."""


@dataclass(frozen=True)
class Cost:
    """Cost of an exchange.

    Attributes:
        seconds: median over the rounds after the first two.
        longest: the longest of them.
        start: seconds from submitting the run to the end of its first round.
        arrays: bytes of arrays, down and up.
        wire: bytes on the loopback interface, both ways; 0: not measured.
    """

    seconds: float
    longest: float
    start: float
    arrays: float
    wire: float


def _loopback() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def _cost(run: Path, start: float, wire: float) -> Cost:
    facts = read_checkpoint(run).facts
    later = facts["seconds"][WARM:]
    arrays = (facts["bytes_down"] + facts["bytes_up"]) / ROUNDS
    return Cost(statistics.median(later), max(later), start, arrays, wire)


def _on_devices(here: Site, name: str, task: Mapping[str, Value]) -> Cost:
    keys = {key: value for key, value in {**task, **RUN}.items() if key not in OWN_DATA}
    begun = time.monotonic()
    run = here.submit(name, {**keys, "start-timeout": 600.0})
    here.wait(run, lambda status: status["round"] >= 1)
    start = time.monotonic() - begun
    here.wait(run, lambda status: status["round"] >= WARM)
    before = _loopback()
    here.wait(run, lambda status: status["round"] >= ROUNDS)
    wire = (_loopback() - before) / (ROUNDS - WARM)
    here.wait(run, lambda status: status["state"] == "completed")
    return _cost(run, start, wire)


def measured(task: Mapping[str, Value]) -> dict[str, Cost]:
    """Return the cost of an exchange of this task by where it is carried out."""
    keys = complete({**task, **RUN})
    federation, dataset = federate(parse(keys)[0])
    costs: dict[str, Cost] = {}
    for name in ("florilegium device serve", "flower-supernode"):
        with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as here:
            start = here.start_node if name.startswith("florilegium") else here.start_flower_node
            for client in range(DEVICES):
                write_device(federation, dataset, client, here.folder / "data" / str(client))
                start(str(client), here.folder / "data" / str(client))
            costs[name] = _on_devices(here, "measured", task)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        run = suite.run(keys, DEVICES, Path(folder))
        costs["simulation, whole run"] = _cost(run, time.monotonic() - begun, 0.0)
    return costs


def main() -> None:
    """Measure all tasks and print a Markdown table."""
    print("| | | seconds an exchange: median | longest | to the first | kB of arrays | kB on the wire |")
    print("|---|---|---|---|---|---|---|")
    for task, keys in TASKS.items():
        for name, cost in measured(keys).items():
            wire = f"{cost.wire / 1e3:.0f}" if cost.wire else "-"
            figures = f"{cost.seconds:.2f} | {cost.longest:.2f} | {cost.start:.1f} | {cost.arrays / 1e3:.0f} | {wire}"
            print(f"| {task} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
