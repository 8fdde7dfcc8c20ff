"""Pull replies: in a simulation all at once; of devices in threads, since Flower waits for what one still sends.

A device that dies while it sends leaves a reply of which Flower has a part. The SuperLink keeps its place for 180 s
(``OBJECT_PUSH_SESSION_TTL_SECONDS``, which cannot be set), and within one pull the ServerApp looks for the rest for as
long, with pauses of up to 10 s; meanwhile it sees no other reply. Here such a pull holds up nobody else, and ends when
the device counts as offline, which takes two missed heartbeats, about 60 s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

from florilegium.clients.core.joining import apart
from florilegium.clients.core.wire import to_files
from florilegium.common.errors import RunError
from florilegium.common.foreign import printable

log = logging.getLogger("flwr")

Found = list[tuple[str, Message | str]]
"""Replies, each with the id of its request; a text is the reason for one that cannot be read."""

AWAY = "its device went away before all of the reply had arrived"
THREADS = 128
"""Largest number of pulls at a time. Requests to more devices share them, and wait for each other in one."""
PATIENCE = 1.0
"""Seconds that a look waits for pulls that have just begun."""
DOUBTFUL = 5.0
"""Seconds of a pull after which it is asked whether the device is still there."""


def pull(grid: Grid, message_ids: Sequence[str]) -> Iterator[tuple[str, Message | str]]:
    """Yield the replies that have arrived, each with the id of its request; the reason for one that cannot be read.

    Raises:
        RunError: if the run cannot go on.
    """
    try:
        replies = list(grid.pull_messages(message_ids))
    except RunError:  # of a grid of the suite's own, of whose replies none will come
        raise
    except Exception as error:
        if len(message_ids) == 1:
            # Flower waits for parts of a reply that the device is still sending, and then names an object.
            gone = type(error).__name__ == "ObjectPullError"
            log.log(logging.DEBUG if gone else logging.WARNING, "a reply cannot be read: %s", printable(error))
            yield message_ids[0], AWAY if gone else "it cannot be read"
        else:  # one unreadable reply makes the whole pull fail, so pull them one by one
            for message_id in message_ids:
                yield from pull(grid, [message_id])
        return
    for reply in replies:
        yield reply.metadata.reply_to_message_id, _apart(reply)


def _apart(reply: Message) -> Message | str:
    """Return a reply with its records apart and large arrays in files, or why that cannot be done."""
    if reply.has_content():
        try:
            reply.content = apart(reply.content)
        except RunError as error:
            return str(error)
        to_files(reply.content)  # or the server would have the models of all devices in memory
    return reply


class Pulls:
    """Pulls of devices' replies that go on in threads."""

    def __init__(self) -> None:
        self._ended: SimpleQueue[tuple[Sequence[str], Found | RunError]] = SimpleQueue()
        self._began: dict[str, float] = {}  # the requests whose replies a thread pulls, and since when

    def look(self, grid: Grid, nodes: Mapping[str, int]) -> Found:
        """Return what has arrived, and why nothing more will of devices that went away while they sent.

        Args:
            grid: the connection to the nodes.
            nodes: the ids of the requests that are waited for, and the node of each.

        Raises:
            RunError: if the run cannot go on, such as for lack of room on the disk.
        """
        idle = [message_id for message_id in nodes if message_id not in self._began]
        size = max(1, -(-len(idle) // THREADS))
        threads = [self._begin(grid, idle[first : first + size]) for first in range(0, len(idle), size)]
        deadline = time.monotonic() + PATIENCE
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        found: Found = []
        try:
            while True:
                ids, replies = self._ended.get_nowait()
                if isinstance(replies, RunError):
                    raise replies
                found += replies
                for message_id in ids:
                    del self._began[message_id]
        except Empty:
            pass
        doubtful = time.monotonic() - DOUBTFUL
        if late := [
            message_id for message_id, began in self._began.items() if began < doubtful and message_id in nodes
        ]:
            online = {*grid.get_node_ids()}
            found += [(message_id, AWAY) for message_id in late if nodes[message_id] not in online]
        return found

    def _begin(self, grid: Grid, message_ids: Sequence[str]) -> Thread:
        def carry_out() -> None:
            try:
                self._ended.put((message_ids, [*pull(grid, message_ids)]))
            except RunError as error:
                self._ended.put((message_ids, error))

        self._began |= dict.fromkeys(message_ids, time.monotonic())
        # A daemon, so that a pull that Flower goes on with for minutes does not hold up the end of the run.
        thread = Thread(target=carry_out, daemon=True)
        thread.start()
        return thread
