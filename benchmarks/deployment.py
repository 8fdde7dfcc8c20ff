"""``python -m benchmarks.deployment``: compare the cost of a round on real devices with one in a simulation.

It starts a SuperLink with TLS and authenticated SuperNodes on this machine, as ``deploy/`` does, and then the same run
as a simulation. The results are in docs/results/deployment.md. The machine must be otherwise idle.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import suite
from benchmarks.task import KEYS
from florilegium.apps.settings import complete, parse
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from florilegium.strategies.core.run_folder import read_checkpoint
from tests.site import site

DEVICES, ROUNDS, WARM = 2, 6, 2
TASK = {**KEYS, "model": "lenet", "num-clients": DEVICES, "cohort-size": 0, "participation": 1.0, "rounds": ROUNDS}
OWN_DATA = ("partitioner", "classes-per-client", "samples-per-client")
"""Keys that do not apply on real devices, which have their own data."""


@dataclass(frozen=True)
class Cost:
    """Cost of a round: seconds; bytes of arrays, down and up; bytes on the loopback interface, both ways."""

    seconds: float
    arrays: float
    wire: float


def _loopback() -> int:
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def _cost(run: Path, wire: float) -> Cost:
    facts = read_checkpoint(run).facts
    later = facts["seconds"][WARM:]
    return Cost(sum(later) / len(later), (facts["bytes_down"] + facts["bytes_up"]) / ROUNDS, wire)


def deployed() -> Cost:
    """Return the cost of a round on devices, each with the data of one client of the task."""
    settings, _ = parse(complete(TASK))
    federation, dataset = federate(settings)
    with tempfile.TemporaryDirectory() as name, site(Path(name)) as here:
        for client in range(DEVICES):
            write_device(federation, dataset, client, here.folder / "data" / str(client))
            here.start_node(str(client), here.folder / "data" / str(client))
        keys = {key: value for key, value in TASK.items() if key not in OWN_DATA}
        run = here.submit("devices", {**keys, "start-timeout": 600.0})
        here.wait(run, lambda status: status["round"] >= WARM)
        before = _loopback()
        here.wait(run, lambda status: status["round"] >= ROUNDS)
        wire = (_loopback() - before) / (ROUNDS - WARM)
        here.wait(run, lambda status: status["state"] == "completed")
        return _cost(run, wire)


def simulated() -> Cost:
    """Return the cost of a round in a simulation; bytes on the wire are not measured."""
    with tempfile.TemporaryDirectory() as name:
        return _cost(suite.run(TASK, DEVICES, Path(name)), 0.0)


def main() -> None:
    """Measure both runs and print a Markdown table."""
    costs = {"simulation": simulated(), "real devices": deployed()}
    print("| | messages | kB of arrays | kB on the wire | seconds |\n|---|---|---|---|---|")
    for name, cost in costs.items():
        wire = f"{cost.wire / 1e3:.0f}" if cost.wire else "-"
        print(f"| {name} | {2 * DEVICES} | {cost.arrays / 1e3:.0f} | {wire} | {cost.seconds:.1f} |")


if __name__ == "__main__":
    main()
