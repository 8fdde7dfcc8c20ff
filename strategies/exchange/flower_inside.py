"""What is used of Flower beyond its documented interface wherever messages are made, sent or answered.

Versions of Flower may change it without notice; ``tests/test_flower_inside.py`` says what has changed.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any, cast

from flwr.app import Array, Message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import ErrorCode
from flwr.common.logger import update_console_handler
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from florilegium.common.spool import LARGE, Spool, spooled

__all__ = ["ErrorCode", "ObjectTree", "Run", "update_console_handler"]

FIRST_RETRY = 0.05
"""Seconds after which an object that has not arrived at the SuperLink yet is asked for again; then twice as long."""


def identify() -> None:
    """Set the ids that every message of this process carries; Flower sets them only in the processes it starts."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def name_message(message: Message, name: str) -> None:
    """Give a message its id, to which its reply refers; Flower's own Grids do so where they send it."""
    message.metadata.__dict__["_message_id"] = name


def shorten_waits() -> None:
    """Let this process ask again soon for parts of a reply that a device is still sending; Flower waits a second."""
    from flwr.superlink.grid import http_grid  # only where messages are sent

    if hasattr(http_grid, "pull_objects"):  # other versions of Flower may lack it
        http_grid.pull_objects = partial(http_grid.pull_objects, initial_backoff=FIRST_RETRY)


def put_together_in_files() -> None:
    """Let this process put large arrays of replies together in files; in memory Flower holds each three times."""
    from flwr.superlink.grid import http_grid

    if hasattr(http_grid, "inflate_object_from_contents"):
        http_grid.inflate_object_from_contents = put_together


def put_together(name: str, contents: dict[str, bytes]) -> Message:
    """Return a received message, of the contents of its parts by their ids, with its large arrays in files.

    Raises:
        Exception: of several kinds, if something is lacking or malformed.
    """
    files, stand_ins = dict[bytes, Spool](), dict[str, InflatableObject]()
    for one, content in contents.items():
        kind, parts, _ = get_object_head_values_from_object_content(content)
        if kind != Array.__qualname__:
            continue
        told = json.loads(get_object_body(content, Array))
        chunks = [parts[index] for index in told["arraychunk_ids"]]
        if sum(len(contents[chunk]) for chunk in chunks) >= LARGE:
            files[one.encode()] = spooled(get_object_body(contents[chunk], ArrayChunk) for chunk in chunks)
            stand_ins[one] = Array(told["dtype"], tuple(told["shape"]), told["stype"], one.encode())
    message = inflate_object_from_contents(name, contents, objects=stand_ins)
    if not isinstance(message, Message):
        raise TypeError(f"received was a {type(message).__name__} in place of a message")
    for record in message.content.array_records.values() if files and message.has_content() else ():
        for array in record.values():
            if array.data in files:  # Flower takes arrays of bytes alone, so that it was given their names
                array.data = cast(bytes, files[array.data])
    return message


def node_pairs(text: str) -> dict[str, Any]:
    """Return what ``flower-supernode`` makes of its option ``--node-config``: pairs, or the name of a TOML file."""
    from flwr.common.config import parse_config_args

    return parse_config_args([text])
