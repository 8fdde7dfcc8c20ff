"""Runs on devices of which one lies: its app changes the replies that an honest one would send."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from florilegium.apps import client_app
from florilegium.apps.settings.configuration import parse
from florilegium.clients.core.wire import Reply
from florilegium.common.settings import Value
from florilegium.partitions.devices import write_device
from florilegium.partitions.federation import federate
from tests.runs import Runs
from tests.support import config

LIAR = "liar"
"""Name of the last device."""


class Devices(Runs):
    """Carries out runs on devices of which the last may lie.

    Args:
        folder: where data, states and runs are.
        keys: the runs' common keys; ``num-clients`` and those of the data say what the devices hold.
        patch: replaces the devices' app.
    """

    def __init__(self, folder: Path, keys: Mapping[str, Value], patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, keys)
        self._patch, self._honest = patch, client_app.app
        federation, dataset = federate(parse(config(**keys))[0])
        names = [*(f"honest-{i}" for i in range(len(federation) - 1)), LIAR]
        self.nodes: list[dict[str, Any]] = []
        for i, name in enumerate(names):
            write_device(federation, dataset, i, folder / f"data-{i}")
            self.nodes.append({"client-id": name, "data-path": str(folder / f"data-{i}")})

    def lied(self, name: str, lie: Callable[[Reply, str], Reply], **keys: Value) -> Path:
        """Carry out a run in which ``lie`` changes the last device's replies, given each and the message's type."""

        def app(message: Message, context: Context) -> Message:
            reply = self._honest(message, context)
            kind = message.metadata.message_type
            if context.node_config["client-id"] != LIAR or kind.startswith("query"):
                return reply
            return Message(lie(Reply.unpack(reply.content), kind).pack(), reply_to=message)

        with self._patch.context() as patch:
            patch.setattr(client_app, "app", app)
            return self.told(name, **keys)

    def told(self, name: str, **keys: Value) -> Path:
        """Carry out a run on the devices as they are."""
        nodes = [{**node, "state-dir": str(self.folder / "states" / name / node["client-id"])} for node in self.nodes]
        return self(name, nodes=nodes, **keys)
