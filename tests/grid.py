"""A Grid without processes: the real ServerApp and ClientApp talk to each other by function calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from florilegium.apps import client_app, server_app
from florilegium.clients.core.joining import apart
from florilegium.strategies.exchange.flower_inside import ErrorCode, Run, identify

FIRST_NODE = 100


class InProcessGrid(Grid):
    """Nodes ``FIRST_NODE``, ``FIRST_NODE + 1``, … that answer as soon as they are asked.

    Args:
        run_config: the run's configuration.
        nodes: the node configuration of each node; a number makes that many nodes of a simulation.
        intercept: sees every message before its node does; may return the reply in its stead, or None to let it pass.
    """

    def __init__(
        self,
        run_config: Mapping[str, Any],
        nodes: int | list[dict[str, Any]] = 2,
        intercept: Callable[[Message], Message | None] | None = None,
    ) -> None:
        simulated = (
            [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)] if isinstance(nodes, int) else nodes
        )
        self._contexts = {
            FIRST_NODE + i: Context(1, FIRST_NODE + i, dict(node), RecordDict(), dict(run_config))
            for i, node in enumerate(simulated)
        }
        self._intercept = intercept
        self._replies: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.received: list[Message] = []
        identify()

    def set_run(self, run: Run) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Run:
        """There is no run object without a SuperLink."""
        raise AssertionError("not used")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Messages are made by their constructor."""
        raise AssertionError("not used")

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let each node answer at once."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            ids.append(message.metadata.message_id)
            message.content = apart(message.content)  # as a device's connection does
            self.sent.append(message)
            reply = self._intercept(message) if self._intercept else None
            if reply is None:
                try:
                    reply = client_app.app(message, self._contexts[message.metadata.dst_node_id])
                except Exception as error:
                    failure = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}")
                    reply = Message(failure, reply_to=message)
            self.received.append(reply)
            self._replies[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that were not pulled yet."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Flower's own exchange, for stock strategies."""
        return self.pull_messages(self.push_messages(messages))


def run_app(run_config: Mapping[str, Any], nodes: int | list[dict[str, Any]] = 2, **kwargs: Any) -> InProcessGrid:
    """Run the ServerApp with ``run_config`` to its end and return the grid that carried its messages."""
    grid = InProcessGrid(run_config, nodes, **kwargs)
    server_app.app(grid, Context(1, 1, {}, RecordDict(), dict(run_config)))
    return grid
