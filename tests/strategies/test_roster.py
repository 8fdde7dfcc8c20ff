"""Nodes that do not say who they are at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from clients.wire import Announcement
from strategies.roster import Client, Roster


class _SlowGrid:
    """One node, which answers from a given question on."""

    def __init__(self, silent: int) -> None:
        self.questions, self._silent = 0, silent
        self._replies: list[Message] = []
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # messages ask for them

    def get_node_ids(self) -> list[int]:
        return [1]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.questions += 1
            message.metadata.__dict__["_message_id"] = f"question {self.questions}"
            if self.questions > self._silent:
                self._replies.append(Message(Announcement(False, "code").pack(), reply_to=message))
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        replies, self._replies = self._replies, []
        return replies


@pytest.mark.parametrize(("silent", "found", "asked"), [(0, True, 1), (2, True, 3), (3, False, 3)])
def test_a_silent_node_is_asked_three_times(silent: int, found: bool, asked: int) -> None:
    roster, grid = Roster(lambda: [Client("0", 5, 5)], 1, "code"), _SlowGrid(silent)
    arguments: tuple[Any, float] = (grid, 0.01)
    for _ in range(6):
        roster.refresh(*arguments)
    assert bool(roster.clients) == found
    assert grid.questions == asked
