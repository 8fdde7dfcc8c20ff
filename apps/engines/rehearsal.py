"""Carry out a run up to its first exchange and throw it away, so that what is wrong is said before others start."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import Message

from florilegium.apps.assembly.parts import assemble, open_folder
from florilegium.apps.engines.one_process import one_thread
from florilegium.clients.core.wire import Announcement, pack
from florilegium.common.settings import Value
from florilegium.strategies.core.cohort import CohortStrategy
from florilegium.strategies.exchange.flower_inside import name_message
from florilegium.strategies.exchange.local_grid import LocalGrid

NAME = "rehearsal"


def rehearse(config: Mapping[str, Value]) -> CohortStrategy:
    """Do all that a simulated run does before its first exchange: load data, build, check, read other runs' parameters.

    Args:
        config: the run's complete configuration; whether it goes on with another run is not looked at.

    Returns:
        The strategy as it was then; the folder of its run is gone.

    Raises:
        ConfigurationError, DataError, RunError: as the run itself would.
    """
    with one_thread(), silence(), TemporaryDirectory() as folder:
        own = {**config, "resume": "", "run-name": NAME, "metrics-port": 0}
        assembly = assemble(own, one_thread=False, one_process=True)
        strategy = assembly.strategy(open_folder(Path(folder) / NAME, own, assembly.settings.method))
        with suppress(_FirstExchange):
            strategy.start(_Rehearsal(assembly.code), pack(assembly.initial), num_rounds=assembly.settings.rounds)
        return strategy


class _FirstExchange(Exception):  # noqa: N818 (no error)
    """The strategy wants to send its first message."""


class _Rehearsal(LocalGrid):
    """A Grid with one node, which answers the roster query alone."""

    def __init__(self, code: str) -> None:
        super().__init__()
        self._code = code
        self._replies: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        """Return the id of the only node."""
        return [1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer roster queries; raise :class:`_FirstExchange` for all else."""
        for message in messages:
            if message.metadata.message_type != "query.roster":
                raise _FirstExchange
            name_message(message, "roster")
            self._replies.append(Message(Announcement(False, self._code).pack(), reply_to=message))
            yield "roster"

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies."""
        replies, self._replies = self._replies, []
        return replies


@contextmanager
def silence() -> Iterator[None]:
    """Context in which warnings are not logged; the run itself will log them."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
