"""Connect this process to a Ray cluster, and open the grid of a run there."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray

from florilegium.cluster.grid import ClusterGrid
from florilegium.cluster.shares import gpu_share
from florilegium.cluster.stock import Stock
from florilegium.cluster.worker import Part, hire


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Context in which this process uses the cluster at ``address``, for everything of Ray's."""
    handled = signal.getsignal(signal.SIGTERM)
    ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handled)  # Ray puts a handler of its own there
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def opened(
    nodes: int,
    code: str,
    data: str,
    make: Callable[..., Part],
    arguments: Sequence[Any],
    environment: Mapping[str, str],
    *,
    gpus: bool,
    stock: Stock | None = None,
) -> Iterator[ClusterGrid]:
    """Context of a grid on the cluster that this process is connected to; its workers end with it.

    Args:
        nodes: number of nodes, and largest number of workers.
        code, data: the hashes that every worker must find.
        make, arguments: what builds a worker's part of the run.
        environment: environment variables of the workers, besides those that every worker needs.
        gpus: whether workers share the cluster's GPUs.
        stock: the rows of clients, for workers that have none; None: they have them.
    """
    share = gpu_share(nodes, number) if gpus and (number := int(ray.cluster_resources().get("GPU", 0))) else 0.0
    paths = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **environment}

    def start(avoided: Sequence[str]) -> tuple[Any, Any]:
        worker = hire(own, share, avoided)
        return worker, worker.prepare.remote(make, *given)

    given = [ray.put(argument) for argument in arguments]
    grid = ClusterGrid(nodes, code, data, start, stock)
    try:
        yield grid
    finally:
        grid.close()
