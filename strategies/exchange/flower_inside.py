"""What is used of Flower beyond its documented interface wherever messages are made, sent or answered.

Versions of Flower may change it without notice; ``tests/test_flower_inside.py`` says what has changed.
"""

from __future__ import annotations

import logging
import time
from threading import local
from typing import TYPE_CHECKING, Any

import httpx
from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.common.logger import update_console_handler
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

if TYPE_CHECKING:  # which imports FastAPI, a tenth of the time in which a run starts
    from flwr.supercore.retry.retry_invoker import RetryInvoker, RetryState

log = logging.getLogger("flwr")

__all__ = ["ErrorCode", "ObjectTree", "Run", "update_console_handler"]


_INTERNAL_ERROR, _BORNE = 500, 120.0


def identify() -> None:
    """Set the ids that every message of this process carries; Flower sets them only in the processes it starts."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def name_message(message: Message, name: str) -> None:
    """Give a message its id, to which its reply refers; Flower's own Grids do so where they send it."""
    message.metadata.__dict__["_message_id"] = name


def bear_internal_errors(invoker: RetryInvoker) -> None:
    """Let requests be made again that end with an internal error of the SuperLink, for two minutes each.

    Flower's database waits five seconds for a lock, which is not enough while large models are stored and deleted.

    Args:
        invoker: what makes the requests, and already repeats those that do not reach the SuperLink.
    """
    gives_up, succeeded, since = invoker.should_giveup, invoker.on_success, local()

    def decide(error: Exception) -> bool:
        if not isinstance(error, httpx.HTTPStatusError) or error.response.status_code != _INTERNAL_ERROR:
            return bool(gives_up and gives_up(error))
        if not hasattr(since, "first"):
            since.first = time.monotonic()
            log.warning("the SuperLink has had an internal error, such as a database that is locked; asking again")
        if over := time.monotonic() - since.first > _BORNE:
            del since.first
        return over

    def note(state: RetryState) -> None:
        vars(since).pop("first", None)
        if succeeded:
            succeeded(state)

    invoker.should_giveup, invoker.on_success = decide, note


def node_pairs(text: str) -> dict[str, Any]:
    """Return what ``flower-supernode`` makes of its option ``--node-config``: pairs, or the name of a TOML file."""
    from flwr.common.config import parse_config_args

    return parse_config_args([text])
