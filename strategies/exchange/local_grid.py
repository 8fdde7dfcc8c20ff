"""What Grids without a SuperLink have in common."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from florilegium.common.errors import RunError
from florilegium.strategies.exchange.flower_inside import Run, identify


class LocalGrid(Grid):
    """A Grid of which Flower knows nothing.

    Attributes:
        waits: says that :meth:`pull_messages` returns when a reply arrives, so that nobody needs to wait between calls.
    """

    waits = True

    def __init__(self) -> None:
        identify()

    @property
    def processes(self) -> Sequence[int]:
        """Ids of the processes that carry out the run: this one, and its workers if it has any."""
        return [os.getpid()]

    def set_run(self, run: Run) -> None:
        """Do nothing: Flower knows of no run here."""

    @property
    def run(self) -> Run:
        """Raise :class:`RunError`: Flower knows of no run here."""
        raise RunError("Flower knows of no run here")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Return a new message with these arguments."""
        return Message(*args, **kwargs)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send the messages; return the replies that arrive within ``timeout`` seconds, or all."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        waiting = {name for name in self.push_messages(messages) if name}
        replies: list[Message] = []
        while waiting and time.monotonic() < deadline:
            replies += self.pull_messages(waiting)
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        return replies
