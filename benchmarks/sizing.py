"""What a run on a cluster needs, computed from constants measured here: ``python -m benchmarks.sizing [large]``.

Prints Markdown tables: memory, bytes and seconds of a round for clients, networks and machines, then those of large
models; and what they assume. Nothing in them was run on such machines.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
import torch

from benchmarks import suite
from benchmarks.memory import Memory
from benchmarks.timing import alternate
from florilegium.apps.settings.configuration import defaults, parse
from florilegium.clients.core.training import train
from florilegium.clients.core.wire import Reply, flat, unpack
from florilegium.common.files import check_tensors, write_tensors
from florilegium.common.settings import Value
from florilegium.common.spool import zeros
from florilegium.models.networks import build
from florilegium.models.parameters import divide, moved
from florilegium.partitions.clientdata import Examples
from florilegium.partitions.loading import task_of
from florilegium.strategies.exchange.expected import Expected

SHAPE, BATCH, STEPS = (3, 32, 32), 10, 20
CLIENTS, NODES, CPUS = (1_000, 100_000, 1_000_000), (1, 4, 16), 16
COHORT, LOCAL_STEPS, PER_CPU, LINK = 1_000, 50, 3, 10e9 / 8
"""Clients a round, their steps, messages for each CPU, and bytes a second of a machine's network."""
PARAMETERS, REPLIES = (0.3e9, 1e9, 7e9), (2, 8, 32)
"""Numbers of parameters in single precision, and of replies in an exchange."""
SAMPLE = 1 << 26
"""Parameters of the model that the server's work is measured with, 268 MB."""
ENROLLED = 2200
"""Bytes of a run's processes for each natural client: (2.83 − 0.84) GB ÷ 900,000 (docs/results/speed.md)."""


@dataclass(frozen=True)
class Network:
    """A network's constants: bytes, seconds of a step of ten examples on one core, and GB of a run with one worker."""

    name: str
    size: int
    step: float
    memory: float


def measured(name: str) -> Network:
    """Measure a network's constants."""
    network = build(name, SHAPE, 10, 1)
    x, y = torch.randn(BATCH * STEPS, *SHAPE), torch.randint(10, (BATCH * STEPS,))
    examples = Examples(x.to(memory_format=torch.channels_last), y)
    settings, _ = parse({**defaults(), "batch-size": BATCH})
    generator, task = torch.Generator().manual_seed(1), task_of(settings)
    seconds = alternate({"": lambda: train(network, examples, settings, generator, task=task, epochs=1)}, 3)[""]
    keys: dict[str, Value] = {
        "dataset": "benchmarks.vectorised:pictures", "partitioner": "iid", "num-clients": 4, "samples-per-client": 20,
        "model": name, "rounds": 3, "local-steps": 1, "evaluate-every": 0, "evaluate-clients": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        process = suite.start_run(keys, 1, Path(folder))
        with Memory(process.pid) as memory:
            suite.finish_run(process)
    size = sum(4 * parameter.numel() for parameter in network.parameters())
    return Network(name, size, seconds / STEPS, memory.take())


@dataclass(frozen=True)
class Work:
    """Seconds of one core for a GB of a model: to send it, to add up a reply, a step, a checkpoint, SHA-256."""

    send: float
    add: float
    step: float
    checkpoint: float
    hash: float


def server_work() -> Work:
    """Measure the server's work for each GB of a large model."""
    model = {"w": np.random.default_rng(1).standard_normal(SAMPLE, np.float32)}
    total = zeros({"w": (SAMPLE,)})["w"]
    gigabytes = model["w"].nbytes / 1e9

    def seconds(work: Callable[[], object]) -> float:
        begun = process_time()
        work()
        return (process_time() - begun) / gigabytes

    def add() -> None:
        checked = Expected(changes_of=model, reports={})
        checked._check_arrays(reply)
        checked._check_changes(reply, model)
        np.add(total, reply.arrays["w"], out=total)

    reply = Reply(["0"], unpack(flat(model)), {"weight": [1.0]}, {})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"

        def checkpoint() -> None:
            write_tensors(file, model)
            check_tensors(file)

        return Work(
            seconds(partial(flat, model)), seconds(add), seconds(lambda: moved(model["w"], divide(total, 2.0), 1.0)),
            seconds(checkpoint),
            seconds(lambda: hashlib.sha256(model["w"].data)),
        )  # fmt: skip


def large() -> None:
    """Print the table of large models."""
    work = server_work()
    print(f"\nSeconds of one core for a GB, as measured: {work}\n")
    print(
        "| parameters | GB of the model | replies | GB of memory | GB of files | GB sent | s of network | s of server |"
    )
    print(f"|{8 * '---|'}")
    for parameters in PARAMETERS:
        size = 4 * parameters / 1e9
        for replies in REPLIES:
            own = work.send + replies * (work.add + work.hash) + work.step + work.checkpoint
            print(
                f"| {parameters / 1e9:g} · 10⁹ | {size:.1f} | {replies} | {2.2 * size:.0f} "
                f"| {(4 + replies) * size:.0f} | {2 * replies * size:.0f} "
                f"| {2 * replies * size * 1e9 / LINK:.0f} | {own * size:.0f} |"
            )


def main() -> None:
    """Measure the constants, and print the tables."""
    if sys.argv[1:] == ["large"]:
        large()
        return
    networks = [measured(name) for name in ("lenet", "cnn64", "resnet18")]
    for one in networks:
        step = f"{1000 * one.step:.1f} ms a step of {BATCH} examples on one core"
        print(f"- `{one.name}`: {one.size / 1e6:.1f} MB, {step}, {one.memory:.2f} GB for a command with one worker")
    print("\n| clients | network | machines | GB of the first one | GB of another | GB sent a round | s a round |")
    print(f"|{7 * '---|'}")
    for clients in CLIENTS:
        for one in networks:
            for nodes in NODES:
                cpus = nodes * CPUS
                messages = min(PER_CPU * cpus, COHORT)
                sent = (nodes + messages) * one.size  # the model once a machine, an update for each message
                compute = COHORT * LOCAL_STEPS * one.step / cpus
                worker = (
                    one.memory / 2
                )  # the command and its worker share what is imported, and hold about as much each
                first = worker * (1 + CPUS) + clients * ENROLLED / 1e9 + messages * one.size / 1e9
                print(
                    f"| {clients:,} | `{one.name}` | {nodes} | {first:.1f} | {worker * CPUS:.1f} | {sent / 1e9:.2f} | "
                    f"{compute + sent / LINK:.1f} |"
                )
    large()


if __name__ == "__main__":
    main()
