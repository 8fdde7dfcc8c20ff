"""Flower's Grid by function calls: one node in this process, for what takes less time than starting Flower.

Used where a finished run is asked something, and where a table needs hundreds of runs of a second each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from florilegium.apps.assembly import assemble, open_folder
from florilegium.clients.core.host import Host
from florilegium.clients.core.wire import pack
from florilegium.common.errors import RunError
from florilegium.common.settings import Value


class OneProcess(Grid):
    """A single node, which answers by function calls.

    Args:
        host: runs the clients.
        code: the hash of the code that the run consists of.
    """

    def __init__(self, host: Host, code: str) -> None:
        self._host, self._code = host, code
        self._replies: dict[str, Message] = {}
        # Messages are stamped with these; what Flower starts has them already, any other process has none.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    def set_run(self, run: Run) -> None:
        """There is no run that Flower knows of."""

    @property
    def run(self) -> Run:
        """There is no run that Flower knows of."""
        raise RunError("the run is over")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Messages are made by their constructor."""
        return Message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Return the number of the node."""
        return [1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Have the node answer at once."""
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = uuid4().hex
            if message.metadata.message_type == "query.roster":
                self._replies[name] = Message(self._host.announce(self._code).pack(), reply_to=message)
            else:
                self._replies[name] = self._host.answer(message, own="")
            yield name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers."""
        return [self._replies.pop(name) for name in list(message_ids)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send and receive."""
        return self.pull_messages(self.push_messages(messages))


def run_here(config: Mapping[str, Value], path: Path) -> Path:
    """Run a simulation in this process and return its folder ``path``; the results are those of a Flower run.

    Args:
        config: the complete run configuration, flat keys.
        path: the folder to write.

    Raises:
        ConfigurationError, RunError: as a run.
    """
    assembly = assemble(config, one_thread=True)
    host = assembly.host(assembly.simulated_clients())
    strategy = assembly.strategy(open_folder(path, config, assembly.settings.method))
    grid, rounds = OneProcess(host, assembly.code), assembly.settings.rounds
    strategy.start(grid, pack(assembly.initial), num_rounds=rounds)
    return path
