"""The common task in this package, engine ``process``: ``python -m benchmarks.peers.own METHOD ROUNDS WORKERS``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.shared import STEPS, arguments, momentum, stamp
from benchmarks.task import KEYS, MU, STRENGTH
from florilegium.apps.engines.base import Means
from florilegium.apps.runs.experiment import carry_out_run
from florilegium.clients.core import optimizers


@contextmanager
def _stamps(title: str, rounds: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Display that prints a time stamp after every round."""
    ended = 0

    def show(status: Mapping[str, Any]) -> None:
        nonlocal ended
        if status.get("round", 0) > ended:
            ended = status["round"]
            stamp(ended)

    yield show


def _count_steps() -> None:
    """Count the steps of our own SGD, which is not a class of PyTorch's, as :func:`shared.count_steps` does others."""
    if (path := os.environ.get(STEPS)) is None:
        return
    file, step = os.open(path, os.O_WRONLY | os.O_APPEND), optimizers.SGD.step

    def counted(self: optimizers.SGD) -> None:
        step(self)
        os.write(file, b".")

    optimizers.SGD.step = counted  # type: ignore[method-assign]


def main() -> None:
    """Carry out a run as the command line does."""
    method, rounds, workers = arguments()
    _count_steps()
    with tempfile.TemporaryDirectory() as folder:
        keys = {
            **KEYS, "method": method, "rounds": rounds, "model": "lenet", "momentum": momentum(method),
            "dataset": "benchmarks.peers.shared:pictures", "partitioner": "iid", "evaluate-clients": 2,
            "runs-dir": folder, "cache-dir": f"{folder}/cache",
        }  # fmt: skip
        del keys["classes-per-client"]
        if method in ("fedprox", "ditto"):
            keys |= {"fedprox": {"fedprox.mu": MU}, "ditto": {"ditto.regularization": STRENGTH}}[method]
        carry_out_run(keys, Means("process", workers, _stamps, fork=True))


if __name__ == "__main__":
    main()
