"""Many clients at once: a worker's seconds for a message of a hundred clients, one at a time ÷ together."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray

from benchmarks.timing import alternate
from florilegium.apps.assembly.parts import assemble
from florilegium.apps.settings.configuration import defaults
from florilegium.clients.core.wire import Reply, Request, Work, flat
from florilegium.clients.node.host import Host
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays
from florilegium.strategies.exchange.flower_inside import identify

COHORT = 100
SIZES = (16, 64)
DIGITS: dict[str, Value] = {"dataset": "digits", "partitioner": "iid", "model": "mlp", "momentum": 0.9}


@dataclass(frozen=True)
class Case:
    """What is measured: a phase of a method, with the blocks of the network that the server sends.

    Attributes:
        what: what it is, in words.
        bound: how many times faster it should be.
        keys: keys that differ from the defaults.
        phase: "train" or "test".
        sent: prefixes of the names of the arrays that the server sends; empty: all.
        cohort: number of clients.
    """

    what: str
    bound: float
    keys: Mapping[str, Value]
    phase: str = "train"
    sent: tuple[str, ...] = ()
    cohort: int = COHORT


ON_CPU = (
    Case("FedAvg, `mlp` on `digits`", 4, DIGITS),
    Case("FedAvg, `linear` on `digits`", 4, {**DIGITS, "model": "linear"}),
    Case("FedRep, new heads on features before a test", 4, {**DIGITS, "method": "fedrep"}, "test", ("fc1", "fc2")),
    Case("LG-FedAvg, `mlp` on `digits`", 4, {**DIGITS, "method": "lg-fedavg"}, "train", ("fc3",)),
    Case("evaluation of the server's model, `mlp` on `digits`", 2, DIGITS, "test"),
    Case("the same after fine-tuning for an epoch", 2, {**DIGITS, "finetune-epochs": 1}, "test"),
)
"""A client has 14 training and 4 test examples; batches of ten, five epochs."""


def pictures() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return random images of CIFAR-10's shape: what is measured does not depend on what they show."""
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (62_500, 3, 32, 32), dtype=np.uint8), np.arange(62_500) % 10


def texts() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return random tokens in the form of Shakespeare's lines: 80 characters of 80 kinds, and the next one."""
    rng = np.random.default_rng(1)
    return rng.integers(0, 80, (12_500, 80)), np.arange(12_500) % 80


def on_gpu() -> list[Case]:
    """Return what is measured on a GPU: clients with 50 training examples each, one epoch."""
    common: dict[str, Value] = {
        "partitioner": "iid", "samples-per-client": 50, "local-epochs": 1, "device": "cuda",
    }  # fmt: skip
    images: dict[str, Value] = {**common, "dataset": f"{__name__}:pictures"}
    kinds = {"lenet": images, "cnn64": images, "char-lstm": {**common, "dataset": f"{__name__}:texts"}}
    return [
        Case(f"FedAvg, `{model}` on a GPU, {cohort} clients", 1, {**kinds[model], "model": model}, cohort=cohort)
        for model, cohorts in {"lenet": (10, 100, 1000), "cnn64": (10, 100), "char-lstm": (10, 100)}.items()
        for cohort in cohorts
    ]


def measure(case: Case, repeats: int = 3) -> dict[int, float]:
    """Return the median seconds of a message to the cohort, by the value of ``vectorise``: 1 and ``SIZES``."""
    with tempfile.TemporaryDirectory() as folder:
        work: dict[str, Callable[[], object]] = {}
        for size in (1, *SIZES):
            keys = {**defaults(), "num-clients": case.cohort, "runs-dir": folder, **case.keys, "vectorise": size}
            assembly = assemble(keys, one_thread=True)
            host = assembly.host(assembly.simulated_clients())
            arrays = {n: a for n, a in assembly.initial.items() if not case.sent or n.startswith(case.sent)}
            work[str(size)] = partial(_answer, host, case.phase, arrays, case.cohort)
        return {int(size): seconds for size, seconds in alternate(work, repeats).items()}


def _answer(host: Host, phase: str, arrays: Arrays, cohort: int) -> None:
    identify()
    request = Request([str(i) for i in range(cohort)], phase, "delta" if phase == "train" else "sum", Work(1, "bench"))
    message = Message(request.pack(flat(arrays)), 1, "train" if phase == "train" else "evaluate")
    reply = Reply.unpack(host.answer(message, own="").content)
    if reply.failures:
        raise RuntimeError(f"{len(reply.failures)} clients failed: {reply.failures}")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
