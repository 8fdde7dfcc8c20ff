"""Time of FedL2P's hypergradient against a first-order meta-gradient, and its memory against fine-tuning."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.timing import alternate, multiplications
from florilegium.apps.settings.configuration import complete, parse
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.training import train
from florilegium.clients.core.wire import Work
from florilegium.clients.core.worker import tune_process
from florilegium.clients.fedl2p import FedL2PClient, last_step, make_meta_nets
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import CPU, ClientData, Examples

SHAPE, BATCH, REPEATS = (3, 32, 32), 32, 15
MEMORY_BATCH = 512
"""Batch size for measuring memory; large, so that a step's memory stands out from the rest of the process."""


def meta_gradient(kind: str, model: str, batch: int) -> Callable[[], object]:
    """Return a function to measure: a meta-gradient of λ (``ift``, ``fomaml+``) or a fine-tuning step (``plain``)."""
    keys: dict[str, Value] = {
        "method": "fedl2p",
        "dataset": "cifar10",
        "model": model,
        "batch-size": batch,
        "finetune-epochs": 1,
        "validation-fraction": 0.5,
        "fedl2p.hypergradient": "ift" if kind == "plain" else kind,
    }
    settings, hyper = parse(complete(keys))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2 * batch, *SHAPE, generator=generator).to(memory_format=torch.channels_last)
    examples = Examples(x, torch.randint(10, (2 * batch,), generator=generator))
    data = ClientData(lambda: examples, lambda: examples, labeled=True, simulated=True, device=CPU)
    network = build(model, SHAPE, 10, 1)
    state = ClientState(Path(), 1, [], 0, "0")
    client = FedL2PClient("0", data, network, get_arrays(network), state, settings, hyper, Work(1))
    first, second = examples.rows(torch.arange(batch)), examples.rows(torch.arange(batch, 2 * batch))
    if kind == "plain":
        return lambda: train(network, first, settings, generator, task=client.task, epochs=1, fixed_norms=True)
    nets, profile = make_meta_nets(SHAPE, 10, settings, 0.01, 1), client.profile()
    train(network, first, settings, generator, task=client.task, epochs=1, fixed_norms=True)
    last = last_step(network)
    return lambda: client.hypergradient(nets, profile, last, first, second)


def costs(model: str) -> tuple[float, float, float]:
    """Return the median seconds of a hypergradient and of a first-order meta-gradient, on one core.

    The third value is the ratio of their multiplications. The measurements alternate. Both include the last
    fine-tuning step, whose gradient they need.
    """
    tune_process("cpu", one_thread=False)
    steps = {kind: meta_gradient(kind, model, BATCH) for kind in ("ift", "fomaml+", "plain")}
    counted = {kind: multiplications(step) for kind, step in steps.items()}
    products = (counted["ift"] + counted["plain"]) / (counted["fomaml+"] + counted["plain"])
    ift, derivative, tuning = alternate(steps, REPEATS, warm=2).values()
    return ift + tuning, derivative + tuning, products


def memory(kind: str, model: str) -> float:
    """Return the growth of a process's peak memory, in bytes, while it runs :func:`meta_gradient`'s function."""
    command = [sys.executable, "-m", "benchmarks.hypergradient", kind, model]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Print the growth of this process's peak memory in bytes."""
    kind, model = sys.argv[1:]
    torch.set_num_threads(1)
    meta_gradient(kind, model, 2)()  # warm-up: memory that is allocated once
    before = _peak()
    step = meta_gradient(kind, model, MEMORY_BATCH)
    for _ in range(2):
        step()
    print(_peak() - before)


if __name__ == "__main__":
    main()
