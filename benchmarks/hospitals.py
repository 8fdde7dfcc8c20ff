"""Small models on few, uneven clients: seconds of a federated training beside a plain PyTorch loop for each client.

The sizes are those of Fed-Heart-Disease: 199, 172, 30 and 85 training rows of 13 numbers in two classes, 15 rounds of
100 steps with batches of 4, a dense layer. The rows are random: what is measured does not depend on what they say.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.timing import alternate
from florilegium.apps.assembly.parts import assemble
from florilegium.apps.settings.configuration import defaults
from florilegium.clients.core.wire import Reply, Request, Work, flat
from florilegium.clients.node.host import Host
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.flower_inside import identify

SIZES, FEATURES, ROUNDS, STEPS, BATCH, RATE = (199, 172, 30, 85), 13, 15, 100, 4, 0.001
KEYS: dict[str, Value] = {
    "dataset": f"{__name__}:patients", "task": "binary", "partitioner": "natural", "num-clients": 0, "model": "linear",
    "local-steps": STEPS, "batch-size": BATCH, "learning-rate": RATE, "batch-order": "continue",
}  # fmt: skip

Rows = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.str_]]


def patients() -> Iterator[Rows]:
    """Yield random training and test rows with the names of their hospitals."""
    rng = np.random.default_rng(1)
    for sizes in (SIZES, [size // 2 for size in SIZES]):
        count = sum(sizes)
        names = np.repeat([f"h{number}" for number in range(len(sizes))], sizes)
        yield rng.normal(size=(count, FEATURES)).astype(np.float32), np.arange(count) % 2, names


def measure(repeats: int = 5) -> dict[str, float]:
    """Return the median seconds of all rounds: the suite's clients in one process, "together" and "alone"; "plain"."""
    with tempfile.TemporaryDirectory() as folder:
        work: dict[str, Callable[[], object]] = {"plain": _plain}
        for name, size in (("together", len(SIZES)), ("alone", 1)):
            assembly = assemble({**defaults(), "runs-dir": folder, **KEYS, "vectorise": size}, one_thread=True)
            work[name] = partial(_rounds, assembly.host(assembly.simulated_clients()), assembly.initial)
        return alternate(work, repeats)


def _rounds(host: Host, arrays: Arrays) -> None:
    """Carry out all rounds: the exchange with the clients, states and weighted mean included."""
    identify()
    clients = [str(number) for number in range(len(SIZES))]
    for number in range(1, ROUNDS + 1):
        request = Request(clients, "train", "delta", Work(number, "bench"))
        reply = Reply.unpack(host.answer(Message(request.pack(flat(arrays)), 1, "train"), own="").content)
        if reply.failures:
            raise RuntimeError(f"{len(reply.failures)} clients failed: {reply.failures}")
        arrays = {name: array + reply.arrays[name] / sum(SIZES) for name, array in arrays.items()}


def _plain() -> None:
    """Take the same steps in a loop for each client, and average: PyTorch's modules and optimizer, nothing else."""
    x, y, names = next(patients())
    parts = [
        (torch.from_numpy(x[names == name]), torch.from_numpy(y[names == name]).float()) for name in np.unique(names)
    ]
    weights = [size / sum(SIZES) for size in SIZES]
    model = nn.Linear(FEATURES, 1)
    streams = [_batches(size, torch.Generator().manual_seed(size)) for size in SIZES]
    loss = nn.BCEWithLogitsLoss()
    for _ in range(ROUNDS):
        start, ends = nn.utils.parameters_to_vector(model.parameters()).detach(), []
        for (inputs, targets), stream in zip(parts, streams, strict=True):
            nn.utils.vector_to_parameters(start, model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(STEPS):
                rows = next(stream)
                optimizer.zero_grad()
                loss(model(inputs[rows])[:, 0], targets[rows]).backward()
                optimizer.step()
            ends.append(nn.utils.parameters_to_vector(model.parameters()).detach())
        mean = sum(weight * end for weight, end in zip(weights, ends, strict=True))
        assert isinstance(mean, Tensor)
        nn.utils.vector_to_parameters(mean, model.parameters())


def _batches(size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from torch.randperm(size, generator=generator).split(BATCH)
