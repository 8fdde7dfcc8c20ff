"""Runs without Flower's processes: the server in this one, the clients here too or in worker processes.

With one worker, Flower's Grid is a single node called by functions. It also serves to query finished runs (``export``,
``personalise``, the studies).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from uuid import uuid4

import torch
from flwr.app import Message
from threadpoolctl import threadpool_limits

from florilegium.apps.assembly.parts import Assembly, assemble, open_folder, outcome_noted
from florilegium.clients.core.wire import Query, pack
from florilegium.clients.core.worker import return_memory
from florilegium.clients.node.host import Host
from florilegium.common.peak_memory import forget_peaks, peak_memory
from florilegium.common.settings import Value
from florilegium.strategies.exchange.flower_inside import name_message
from florilegium.strategies.exchange.local_grid import LocalGrid
from florilegium.strategies.folder.run_folder import Watcher

Cluster = Callable[[Assembly], AbstractContextManager[LocalGrid]]
"""Opens the grid of a run."""
_RUNS = count()
"""Numbers the runs of this process."""


class OneProcess(LocalGrid):
    """A Grid with a single node in this process; messages are handled by function calls.

    Args:
        host: runs the clients.
        code: the hash of the run's code (:attr:`Assembly.code`).
    """

    def __init__(self, host: Host, code: str) -> None:
        super().__init__()
        self._host, self._code = host, code
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return the id of the only node."""
        return [1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Handle each message at once, keep the reply, and yield the message's id."""
        for message in messages:
            name_message(message, name := uuid4().hex)
            if message.metadata.message_type == "query.roster":
                self._replies[name] = Message(
                    self._host.announce(self._code, Query.unpack(message.content)).pack(), reply_to=message
                )
            else:
                self._replies[name] = self._host.answer(message, own="")
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages."""
        return [self._replies.pop(name) for name in list(message_ids)]


def run_here(
    config: Mapping[str, Value],
    path: Path,
    watcher: Watcher | None = None,
    *,
    workers: int = 1,
    fork: bool = False,
    cluster: Cluster | None = None,
) -> Path:
    """Run a simulation without Flower's processes and return its folder ``path``.

    Results equal those of a Flower simulation with as many workers, bit for bit. The process computes with one thread
    while the run lasts.

    Args:
        config: the complete run configuration, flat keys.
        path: the folder to write.
        watcher: follows the run.
        workers: number of worker processes; with one, this process does its work.
        fork: whether workers may be forked from this process (:func:`worker_grid`).
        cluster: opens the grid of a run whose workers are elsewhere.

    Raises:
        ConfigurationError, RunError: as in a Flower simulation.
        Interrupted: if the watcher has stopped the run after a round.
    """
    if next(_RUNS):  # what earlier runs in this process have left is not to be charged to this one
        return_memory()
    with one_thread():
        assembly = assemble(config, one_thread=False, one_process=workers == 1 and cluster is None)
        run = open_folder(path, config, assembly.settings.method, watcher)
        with outcome_noted(run), cluster(assembly) if cluster else _grid(assembly, workers, fork) as grid:
            strategy = assembly.strategy(run, engine="ray" if cluster else "process")
            forget_peaks(grid.processes)
            strategy.start(grid, pack(assembly.initial), num_rounds=assembly.settings.rounds)
            if (peak := peak_memory(grid.processes)) is not None:
                run.attempts.note(peak_memory_mb=round(peak / 1e6))
    return path


@contextmanager
def _grid(assembly: Assembly, workers: int, fork: bool) -> Iterator[LocalGrid]:
    if workers == 1:
        yield OneProcess(assembly.host(assembly.simulated_clients()), assembly.code)
        return
    from florilegium.apps.engines.workers import worker_grid

    with worker_grid(assembly, workers, fork=fork) as grid:
        yield grid


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which PyTorch and NumPy compute with one thread, as the workers of a simulation do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
