"""Cost of messages: exchanges in Flower's simulation, with our hosting and with one message per client.

Run as a script, it starts Flower's simulation engine with one of three kinds of exchange and prints seconds as JSON:
``nothing`` (a broadcast of 120,000 parameters to 1,000 clients that return nothing), ``histogram`` (1,000 clients
return their class counts, our hosting) and ``stock`` (the same class counts, one node and one message per client).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from florilegium.apps.assembly.node_clients import SimulatedClients
from florilegium.apps.assembly.parts import assemble
from florilegium.apps.engines.workers import worker_grid
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.base import Answer, BaseClient
from florilegium.clients.core.phases import phase
from florilegium.clients.core.wire import Announcement
from florilegium.clients.core.worker import tune_process
from florilegium.clients.node.host import Host
from florilegium.common.settings import NoHyper
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays
from florilegium.strategies.core.federation import Setup
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.roster import Member, Roster
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.run_folder import RunFolder

CLIENTS = 1000
PARAMETERS = 120_000
TICK = 0.1
"""Seconds between two polls of Flower's simulation engine for new messages."""
KEYS = {**defaults(), "partitioner": "iid", "num-clients": CLIENTS, "cohort-size": CLIENTS}


class LightClient(BaseClient):
    """A client whose phases cost next to nothing."""

    @phase
    def nothing(self, arrays: Arrays) -> Answer:
        """Return no arrays."""
        return Answer({}, 1)

    @phase
    def histogram(self, arrays: Arrays) -> Answer:
        """Return the number of training examples of each class."""
        counts = np.bincount(self.data.labels.numpy(), minlength=10).astype(np.float32)
        return Answer({"counts": counts}, len(self.data.labels))


def _host() -> Host:
    settings, _ = parse(KEYS)
    device = tune_process("cpu", one_thread=True)
    return Host(
        LightClient, settings, NoHyper(), build("mlp", (1, 8, 8), 10, 1), SimulatedClients(settings, device), ""
    )


client_app = ClientApp()
_hosts: list[Host] = []


def _answer(message: Message, context: Context) -> Message:
    if not _hosts:
        _hosts.append(_host())
    return _hosts[0].answer(message, own="0")


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Run the clients named in the message (our hosting)."""
    return _answer(message, context)


@client_app.query("roster")
def roster(message: Message, context: Context) -> Message:
    """Announce a node without clients of its own, as in a simulation (our hosting)."""
    return Message(Announcement(False, "bench").pack(), reply_to=message)


@client_app.query("histogram")
def histogram(message: Message, context: Context) -> Message:
    """Return the class counts of the node's own client (one message per client)."""
    settings, _ = parse(KEYS)
    data = SimulatedClients(settings, tune_process("cpu", one_thread=True)).data(
        str(context.node_config["partition-id"])
    )
    counts = np.bincount(data.train.y.numpy(), minlength=10)
    return Message(RecordDict({"metrics": MetricRecord({"counts": counts.tolist()})}), reply_to=message)


def _hosted(grid: Grid, kind: str, repeats: int, code: str = "bench") -> list[float]:
    settings, _ = parse(KEYS)
    clients = [Member(str(i), 1, 1) for i in range(CLIENTS)]
    book = Roster(lambda: clients, 0, code)
    run = RunFolder(Path(tempfile.mkdtemp()), KEYS, "fedavg")
    strategy = FedAvg(Setup(settings, NoHyper(), LightClient, book, run))
    book.wait(grid, 120)
    cohort = [str(i) for i in range(CLIENTS)]
    model = {"theta": np.zeros(PARAMETERS, np.float32)} if kind == "nothing" else None
    seconds = []
    rng = np.random.default_rng(1)
    for server_round in range(repeats + 1):
        time.sleep(rng.uniform(0, TICK))  # as in a run, start at a random time between two polls
        start = time.perf_counter()
        shapes = {"counts": (10,)} if kind == "histogram" else {}
        Round(strategy.federation, grid, server_round).ask(kind, cohort, reduce="sum", send=model, shapes=shapes)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


class _Light:
    """A method whose clients do next to nothing."""

    @staticmethod
    def client_class() -> type[BaseClient]:
        """Return the class of its clients."""
        return LightClient


def with_workers(kind: str, workers: int, repeats: int = 20) -> float:
    """Return the median seconds of an exchange with the worker processes of engine ``process``."""
    assembly = replace(assemble(KEYS, one_thread=True), method=_Light())  # type: ignore[arg-type]
    with worker_grid(assembly, workers, fork=True) as grid:
        return float(np.median(_hosted(grid, kind, repeats, assembly.code)))


def _stock(grid: Grid) -> list[float]:
    def messages() -> list[Message]:
        return [
            Message(RecordDict({"config": ConfigRecord()}), node, "query.histogram") for node in grid.get_node_ids()
        ]

    while len(list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.1)
    list(grid.send_and_receive(messages()[:4]))  # warm-up: start the workers
    start = time.perf_counter()
    replies = list(grid.send_and_receive(messages()))
    if len(replies) != CLIENTS or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"{len(replies)} of {CLIENTS} replies, {sum(reply.has_error() for reply in replies)} errors")
    return [time.perf_counter() - start]


def _run(kind: str, workers: int, repeats: int) -> list[float]:
    from flwr.simulation import run_simulation

    server_app, result = ServerApp(), list[float]()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        result.extend(_stock(grid) if kind == "stock" else _hosted(grid, kind, repeats))

    from benchmarks.exchange import client_app as importable  # imported by name, so that workers can import it too

    run_simulation(
        server_app,
        importable,
        num_supernodes=CLIENTS if kind == "stock" else workers,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": workers}},
    )
    return result


def measure(kind: str, workers: int, repeats: int = 20) -> float:
    """Return the median seconds of an exchange of ``kind``, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.exchange", kind, str(workers), str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    if done.returncode or not lines:
        raise RuntimeError(f"exchange benchmark '{kind}' failed: {done.stderr[-2000:]}")
    return float(np.median(json.loads(lines[-1])))


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
