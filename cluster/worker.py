"""A worker process on some machine of a Ray cluster: it carries out the messages that it is given, one at a time."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from flwr.app import Error, Message

from florilegium.clients.core.state import Change
from florilegium.clients.node.settling import FLUSHES
from florilegium.strategies.exchange.flower_inside import ErrorCode, identify

log = logging.getLogger("flwr")


class Node(Protocol):
    """What carries out messages, such as :class:`florilegium.clients.node.host.Host`."""

    def answer(self, message: Message, own: str) -> Message:
        """Carry out a message; return the reply."""

    def hold_back(self) -> None:
        """From now on leave clients' new states beside their files, for :meth:`held_back`."""

    def held_back(self) -> Sequence[Change]:
        """Return the new states of the last message's clients, which do not count before they are published."""


@dataclass(frozen=True)
class Part:
    """What a worker has built.

    Attributes:
        node: carries out messages.
        code, data: hashes of its code and of its data, both of which the server compares.
        give: takes the rows of a message's clients by their ids, before the node gets the message; None: it has all.
    """

    node: Node
    code: str
    data: str
    give: Callable[[Mapping[str, Any]], object] | None = None


@dataclass(frozen=True)
class Place:
    """Where a worker is, and what it has found there.

    Attributes:
        node: Ray's id of the machine's Ray node.
        name: the machine's name and address.
        code, data: the hashes of :class:`Part`.
        error: why the worker cannot take part, "" if it can.
    """

    node: str
    name: str
    code: str = ""
    data: str = ""
    error: str = ""


class Worker:
    """The process, as a Ray actor."""

    def __init__(self) -> None:
        self._part: Part | None = None

    def prepare(self, make: Callable[..., Part], *arguments: Any) -> Place:
        """Build what carries out the messages of a run, by ``make(*arguments)``; return where, and what was found."""
        identify()
        here = ray.get_runtime_context().get_node_id()
        name = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
        try:
            self._part = make(*arguments)
        except Exception as error:
            log.exception("a worker cannot take part")
            return Place(here, name, error=f"{type(error).__name__}: {error}")
        self._part.node.hold_back()
        return Place(here, name, self._part.code, self._part.data)

    def answer(
        self, message: Message, own: str, clients: Sequence[str] = (), *rows: Any, **records: Any
    ) -> tuple[Message, Sequence[Change]]:
        """Carry out a message.

        Args:
            message: the message.
            own: the id of the client that the node stands for.
            clients: the clients whose rows come with the message.
            rows: their rows, in the same order.
            records: records of the message that travelled by themselves.

        Returns:
            The reply, or the error of what is not one of the clients'; and the clients' new states.
        """
        assert self._part is not None, "a worker is prepared before it gets messages"
        for name, record in records.items():
            message.content[name] = record
        if self._part.give is not None:
            self._part.give(dict(zip(clients, rows, strict=True)))
        try:
            reply = self._part.node.answer(message, own)
        except Exception as error:
            log.exception("a worker")
            said = f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, said), reply_to=message)
        return reply, self._part.node.held_back()

    def settle(self, states: Sequence[Change]) -> None:
        """Let states count, of this or another worker, now that the server has the reply that goes with them."""
        with ThreadPoolExecutor(FLUSHES) as disk:
            list(disk.map(Change.publish, states))


def hire(environment: Mapping[str, str], gpus: float, avoided: Sequence[str]) -> Any:
    """Return a new worker, which starts as soon as a machine of the cluster has a CPU for it.

    Args:
        environment: additional environment variables of its process.
        gpus: the share of a GPU that it gets.
        avoided: ids of Ray nodes on which it is not to be.
    """
    options: dict[str, Any] = {
        "num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD",
        "runtime_env": {"env_vars": dict(environment)},
    }  # fmt: skip
    if avoided:
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(avoided)})"}
    return ray.remote(Worker).options(**options).remote()
