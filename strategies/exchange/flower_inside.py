"""What is used of Flower beyond its documented interface wherever messages are made, sent or answered.

Versions of Flower may change it without notice; ``tests/test_flower_inside.py`` says what has changed.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.common.logger import update_console_handler
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["ErrorCode", "ObjectTree", "Run", "update_console_handler"]


def identify() -> None:
    """Set the ids that every message of this process carries; Flower sets them only in the processes it starts."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def name_message(message: Message, name: str) -> None:
    """Give a message its id, to which its reply refers; Flower's own Grids do so where they send it."""
    message.metadata.__dict__["_message_id"] = name


def node_pairs(text: str) -> dict[str, Any]:
    """Return what ``flower-supernode`` makes of its option ``--node-config``: pairs, or the name of a TOML file."""
    from flwr.common.config import parse_config_args

    return parse_config_args([text])
