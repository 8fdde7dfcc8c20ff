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

from apps.client_app import SimulatedClients
from apps.code_version import code_version
from apps.methods import METHODS, table_of
from apps.server_app import population
from apps.settings import parse
from clients.host import Host
from clients.wire import pack
from clients.worker import tune_process
from common.errors import RunError
from common.settings import Value
from models.networks import build
from models.parameters import get_arrays
from partitions.datasets import find_spec
from strategies.roster import Roster
from strategies.run_folder import RunFolder


class OneProcess(Grid):
    """A single node, which answers by function calls: an exchange of a finished run with one client."""

    def __init__(self, host: Host) -> None:
        self._host = host
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
                self._replies[name] = Message(self._host.announce(code_version()).pack(), reply_to=message)
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
    settings, hyper = parse(config)
    method, spec = METHODS[settings.method], find_spec(settings.dataset)
    device = tune_process(settings.device, one_thread=True)
    model = build(settings.model, spec.shape, spec.classes, settings.seed).to(device)
    host = Host(method.client(), settings, hyper, model, SimulatedClients(settings, device), "")
    roster = Roster(lambda: population(settings), settings.num_clients, code_version(), settings.roster_timeout)
    strategy = method.strategy()(settings, hyper, roster, RunFolder(path, config, table_of(settings.method)))
    strategy.start(OneProcess(host), pack(get_arrays(model)), num_rounds=settings.rounds)
    return path
