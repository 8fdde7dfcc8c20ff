"""Many clients at once: a worker's seconds for a message of a hundred clients, one at a time ÷ together."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.timing import alternate
from florilegium.apps.assembly import assemble
from florilegium.apps.settings import defaults
from florilegium.clients.core.host import Host
from florilegium.clients.core.wire import Reply, Request, Work, flat
from florilegium.common.settings import Value
from florilegium.models.parameters import Arrays

COHORT = 100
DIGITS: dict[str, Value] = {"dataset": "digits", "partitioner": "iid", "model": "mlp", "momentum": 0.9}


@dataclass(frozen=True)
class Case:
    """What is measured: a phase of a method, with the blocks of the network that the server sends.

    Attributes:
        keys: keys that differ from the defaults.
        phase: "train" or "test".
        sent: prefixes of the names of the arrays that the server sends; empty: all.
        sizes: values of ``vectorise`` to try.
    """

    keys: Mapping[str, Value]
    phase: str = "train"
    sent: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (16, 100)


def measure(case: Case, cohort: int = COHORT, repeats: int = 3) -> dict[int, float]:
    """Return the median seconds of a message to ``cohort`` clients, for ``vectorise`` = 1 and each of the sizes."""
    with tempfile.TemporaryDirectory() as folder:
        work: dict[str, Callable[[], object]] = {}
        for size in (1, *case.sizes):
            keys = {**defaults(), "num-clients": cohort, "runs-dir": folder, **case.keys, "vectorise": size}
            assembly = assemble(keys, one_thread=True)
            host = assembly.host(assembly.simulated_clients())
            arrays = {n: a for n, a in assembly.initial.items() if not case.sent or n.startswith(case.sent)}
            work[str(size)] = partial(_answer, host, case.phase, arrays, cohort)
        return {int(size): seconds for size, seconds in alternate(work, repeats).items()}


def _answer(host: Host, phase: str, arrays: Arrays, cohort: int) -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # ids that every message carries
    request = Request([str(i) for i in range(cohort)], phase, "delta" if phase == "train" else "sum", Work(1, "bench"))
    message = Message(request.pack(flat(arrays)), 1, "train" if phase == "train" else "evaluate")
    reply = Reply.unpack(host.answer(message, own="").content)
    if reply.failures:
        raise RuntimeError(f"{len(reply.failures)} clients failed: {reply.failures}")
    if torch.cuda.is_available():
        torch.cuda.synchronize()
